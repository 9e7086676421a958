"""The attention kernels compiled for sm_80 and sm_90 without a GPU: they compile, do not spill, use no atomics."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch_tcgnn

pytestmark = pytest.mark.slow
SCRIPT = Path(__file__).with_name("compile_attention.py")
WALKS = [
    f"{form}/{step}/{operands}"
    for form in ("additive", "gatv2", "dot")
    for step in ("forward", "rows", "columns")
    for operands in ("fp32/8x8", "fp32/8x8/cut", "bf16/4x32/edges+dropout")
]
CASES = [*WALKS, "merge/softmax", "merge/softmax/wide", "merge/sum", "merge/sums"]


@pytest.fixture(scope="module", params=[80, 90], ids=["sm_80", "sm_90"])
def compiled(request, tmp_path_factory):
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    env["TRITON_CACHE_DIR"] = str(tmp_path_factory.mktemp("triton"))
    source = str(Path(torch_tcgnn.__file__).parents[1])
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [source, env.get("PYTHONPATH")]))
    command = [sys.executable, str(SCRIPT), str(request.param)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def test_the_cases_are_those_listed_here(compiled):
    assert set(compiled) == set(CASES)


@pytest.mark.parametrize("case", CASES)
def test_there_is_machine_code_without_atomics(compiled, case):
    assert compiled[case]["cubin_bytes"] > 0
    assert compiled[case]["atomics"] == 0


@pytest.mark.parametrize("case", WALKS)
def test_neighbours_are_read_by_wide_loads(compiled, case):
    assert compiled[case]["wide_loads"] > 0


@pytest.mark.parametrize("case", CASES)
def test_nothing_spills(compiled, case):
    found = compiled[case]["resources"]
    if found is None:
        pytest.skip("triton brings no cuobjdump here")
    assert found["reg"] > 0
    assert found["local"] == 0
    assert found["stack"] == 0
