"""Keep torch's compile traces out of the report of a failed rule."""

import logging

import pytest


@pytest.fixture(autouse=True)
def no_compile_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("torch.__trace"), "disabled", True)
