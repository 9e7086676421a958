"""Structure is built on one stream and read on any: the builder waits until it is there."""

from __future__ import annotations

import torch


def settle(device: torch.device) -> None:
    """Wait for what was just built on a GPU: other streams will read it, and nothing tells them when it is there.

    Example:
        >>> settle(torch.device("cpu"))
    """
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


def check_not_captured(device: torch.device) -> None:
    """Raise where a CUDA graph is being captured: building asks the device for sizes, and a capture cannot answer.

    Raises:
        RuntimeError: it is.

    Example:
        >>> check_not_captured(torch.device("cpu"))
    """
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise RuntimeError("what a graph needs must exist before a CUDA graph is captured: run the operator once on it")
