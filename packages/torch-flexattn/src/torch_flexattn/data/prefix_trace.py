"""Mooncake's trace of chat requests, in which equal numbers mean equal blocks of a prompt: prefixes can be shared."""

from __future__ import annotations

import json
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import DataFormatError
from .locate import Root, locate

FOLDER = "mooncake-conversation-trace"
BLOCK = 512
"""Tokens of a block of a prompt."""


@dataclass(frozen=True, eq=False)
class PrefixTrace:
    """Requests in order of arrival.

    Attributes:
        arrival_ms: int64 ``[N]``.
        prompt_tokens: int64 ``[N]``.
        output_tokens: int64 ``[N]``.
        blocks: int64 ``[M]``: numbers of the blocks of 512 tokens of all prompts, one request after the other; equal
            ones have equal tokens and equal blocks before them.
        starts: int64 ``[N + 1]``: where the blocks of each request begin and end.

    Example:
        >>> import torch
        >>> one = torch.tensor([600])
        >>> PrefixTrace(one * 0, one, one, torch.tensor([7, 8]), torch.tensor([0, 2])).blocks_of(0)
        tensor([7, 8])
    """

    arrival_ms: Tensor
    prompt_tokens: Tensor
    output_tokens: Tensor
    blocks: Tensor
    starts: Tensor

    def __len__(self) -> int:
        return self.arrival_ms.shape[0]

    def blocks_of(self, request: int) -> Tensor:
        """Numbers of the blocks of one prompt, ``[⌈prompt_tokens / 512⌉]``."""
        return self.blocks[self.starts[request] : self.starts[request + 1]]


def load_prefix_trace(root: Root = None) -> PrefixTrace:
    """The Mooncake conversation trace: 12,031 requests, of whose prompt blocks 36.6 % came before.

    Args:
        root: folder that holds ``mooncake-conversation-trace`` or its file; default: ``../shared/data``,
            ``$TORCH_EXT_DATA``.

    Returns:
        :class:`PrefixTrace`, its tensors ``[N]``, ``[M]`` and ``[N + 1]``.

    Raises:
        FileNotFoundError: no such file.
        DataFormatError: a line that is no request, with its number.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "conversation_trace.jsonl"
        >>> line = '{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}'
        >>> _ = path.write_text(line)
        >>> load_prefix_trace(path.parent).blocks
        tensor([0, 1])

    Reference:
        Qin et al. 2025 (Mooncake, FAST); github.com/kvcache-ai/Mooncake.
    """
    path = locate(FOLDER, "conversation_trace.jsonl", root)
    requests: list[tuple[int, int, int]] = []
    blocks: list[int] = []
    counts: list[int] = [0]
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            numbers, own = _request(path.name, number, line)
            requests.append(numbers)
            blocks += own
            counts.append(len(own))
    columns = torch.tensor(requests, dtype=torch.int64).view(-1, 3).T.contiguous()
    starts = torch.tensor(counts, dtype=torch.int64).cumsum(0)
    arrival, prompt, output = columns.unbind(0)
    return PrefixTrace(arrival, prompt, output, torch.tensor(blocks, dtype=torch.int64), starts)


def _request(name: str, number: int, line: str) -> tuple[tuple[int, int, int], list[int]]:
    try:
        found = json.loads(line)
        numbers = tuple(found[key] for key in ("timestamp", "input_length", "output_length"))
        blocks = found["hash_ids"]
        if not all(type(n) is int and n >= 0 for n in (*numbers, *blocks)):
            raise ValueError
    except (ValueError, KeyError, TypeError):
        wanted = "an object with timestamp, input_length, output_length and hash_ids"
        raise DataFormatError(f"{name}, line {number}: expected {wanted}, got {line.strip()[:80]!r}") from None
    if len(blocks) != -(-numbers[1] // BLOCK):
        raise DataFormatError(
            f"{name}, line {number}: input_length {numbers[1]} makes {-(-numbers[1] // BLOCK)} blocks of {BLOCK} "
            f"tokens, got {len(blocks)} hash_ids"
        )
    return numbers, blocks  # type: ignore[return-value]
