"""Which path a graph takes on a GPU: tensor cores where a gathered row serves several entries, else CUDA cores."""

from __future__ import annotations

import torch


def choose_path(path: str, device: torch.device) -> str:
    """``"tc"`` or ``"cuda"`` for a graph on ``device`` (``"cuda"`` on a CPU means the only path there is).

    Raises:
        RuntimeError: ``path="tc"`` without a GPU that has the tensor-core instructions used (compute capability 8.0).
    """
    capable = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
    if path == "tc" and not capable:
        raise RuntimeError(f"path='tc' needs a GPU of compute capability 8.0 or later, got {device}: use path='auto'")
    return "tc" if capable and path != "cuda" else "cuda"
