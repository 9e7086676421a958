"""The kernels of Hopper GPUs: compiled anywhere, run on such a GPU."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")
collect_ignore_glob = ["compile_*.py"]  # scripts of processes of their own
