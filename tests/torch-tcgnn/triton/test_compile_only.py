"""Every Triton kernel compiled for sm_80 and sm_90 without a GPU: it compiles, does not spill, uses tensor cores."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch_tcgnn

pytestmark = pytest.mark.slow
SCRIPT = Path(__file__).with_name("compile_kernels.py")
CASES = (
    *(f"{kernel}/{dtype}{end}" for kernel in ("spmm", "blocks") for dtype in ("fp32", "fp16", "bf16")
      for end in ("", "/weighted")),
    "spmm/heads", "spmm/unaligned", "spmm/fp64", "extremum", "sddmm", "sddmm/long", "softmax", "add_partial",
    "blocks/narrow",
)  # fmt: skip


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
def test_there_is_machine_code_that_does_not_spill(compiled, case):
    found = compiled[case]
    assert found["cubin_bytes"] > 0
    if found["resources"] is None:
        pytest.skip("triton brings no cuobjdump here")
    assert 0 < found["resources"]["reg"] <= 128
    assert found["resources"]["local"] == 0
    assert found["resources"]["stack"] == 0


@pytest.mark.parametrize("case", [c for c in CASES if c.startswith("blocks/")])
def test_blocks_run_on_tensor_cores_with_float32_accumulation(compiled, case):
    inputs = {"fp16": "f16", "bf16": "bf16"}.get(case.split("/")[1], "tf32")
    assert compiled[case]["mma"]
    for instruction in compiled[case]["mma"]:
        assert f".f32.{inputs}.{inputs}.f32" in instruction


@pytest.mark.parametrize("case", ["spmm/fp32", "spmm/fp32/weighted", "spmm/fp16", "sddmm"])
def test_aligned_rows_are_read_sixteen_bytes_at_a_time(compiled, case):
    assert compiled[case]["wide_loads"] > 0


def test_unaligned_rows_are_not(compiled):
    assert compiled["spmm/unaligned"]["wide_loads"] == 0
