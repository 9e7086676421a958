"""A toy package for the driver: row sums of a random matrix, with peers that are right, wrong, broken and absent."""

import pytest
import torch

from benchmarks.case import Case, Skip


def _broken(inputs):
    raise RuntimeError("no kernel for this shape\nsecond line")


@pytest.fixture
def toy_case():
    """`toy_case(ours=…, …)` makes a case; every field can be replaced."""

    def make(**changes):
        fields = {
            "name": "rowsum/64",
            "tags": ("rowsum", "quick"),
            "make": lambda device: torch.randn(64, 64, generator=torch.Generator().manual_seed(0)).to(device),
            "ours": lambda x: lambda: x.sum(1),
            "reference": lambda x: x.double().sum(1),
            "tolerance": 1e-5,
            "peers": {
                "matmul": lambda x: lambda: x @ torch.ones(64),
                "wrong": lambda x: lambda: x.sum(1) + 0.1,
                "broken": _broken,
                "absent": Skip("needs a licence"),
            },
            "flops": 64 * 64,
            "bytes": lambda x: 4 * (x.numel() + 64),
        }
        return Case(**(fields | changes))

    return make


@pytest.fixture(autouse=True)
def one_thread():
    """The driver's clock is fair to small cases only without a thread pool."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
