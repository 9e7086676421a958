"""Options that several commands share."""

from __future__ import annotations

import argparse

import torch

HELP = 'such as "causal & sliding_window(256)" or "softcap(20)"; tuples in parentheses, tables in brackets'


def add_lengths(parser: argparse.ArgumentParser, *, required: bool) -> None:
    """Declare ``--seq``, ``--kv-seq`` and ``--block``."""
    parser.add_argument(
        "--seq", type=count, required=required, metavar="N", help="queries, and keys unless --kv-seq is given"
    )
    parser.add_argument("--kv-seq", type=count, metavar="N", help="keys")
    parser.add_argument(
        "--block", type=count, nargs="+", default=[128], metavar="N", help="queries and keys of a block (default: 128)"
    )


def count(text: str) -> int:
    """A number of at least 1, below 2³¹.

    Raises:
        ArgumentTypeError: anything else.
    """
    if not text.isascii() or not text.isdigit() or not 0 < int(text[:11]) < 2**31 or len(text) > 10:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 to 2**31 - 1, got {text!r}")
    return int(text)


def blocks(options: argparse.Namespace) -> int | tuple[int, int]:
    """What ``--block`` says.

    Raises:
        ValueError: more than two numbers.
    """
    if len(options.block) > 2:
        raise ValueError(f"--block takes one number or two, got {' '.join(map(str, options.block))}")
    return options.block[0] if len(options.block) == 1 else (options.block[0], options.block[1])


def add_device(parser: argparse.ArgumentParser) -> None:
    """Declare ``--device``."""
    parser.add_argument("--device", metavar="NAME", help="such as cuda or cpu (default: a GPU, if there is one)")


def device_of(options: argparse.Namespace) -> torch.device:
    """What ``--device`` says.

    Raises:
        ValueError: no such device here.
    """
    name = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"--device: no device is called {name!r}") from None
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"--device must be cuda or cpu, got {name!r}")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"--device {name}: PyTorch sees no GPU")
    return device
