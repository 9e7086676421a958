"""Options that several commands share."""

from __future__ import annotations

import argparse

import torch

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def add_device(parser: argparse.ArgumentParser) -> None:
    """Declare ``--device``."""
    parser.add_argument("--device", metavar="DEVICE", help="cpu, cuda or cuda:N (default: cuda where there is a GPU)")


def chosen_device(name: str | None) -> torch.device:
    """The device that ``--device`` names, with its index where it is a GPU.

    Raises:
        ValueError: no such device.
    """
    if name is None:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"--device must be cpu, cuda or cuda:N, got {name!r}") from None
    if device.type == "cpu":
        return device
    if device.type != "cuda":
        raise ValueError(f"--device must be cpu, cuda or cuda:N, got {name!r}")
    if not torch.cuda.is_available():
        raise ValueError(f"--device {name}: PyTorch sees no GPU here")
    index = torch.cuda.current_device() if device.index is None else device.index
    if index >= torch.cuda.device_count():
        raise ValueError(f"--device {name}: there are {torch.cuda.device_count()} GPUs")
    return torch.device("cuda", index)
