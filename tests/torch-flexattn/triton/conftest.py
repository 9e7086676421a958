"""The Triton kernels: on the CPU through Triton's interpreter, on a GPU machine on the GPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")
collect_ignore_glob = ["compile_*.py"]  # scripts of processes of their own
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(scope="session", autouse=True)
def generated_sources(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Kernels are written to a folder of the test run."""
    folder = tmp_path_factory.mktemp("kernels")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCH_FLEXATTN_CACHE", str(folder))
        yield folder
