"""Azure's traces of requests to language models: when they came, how long they were. Lengths only, no text."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

import torch
from torch import Tensor

from ..errors import DataFormatError
from ..factory_arguments import check_choice
from .locate import Root, locate

FOLDER = "azure-llm-trace-2023"
HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"
WHICH = ("code", "conv")


@dataclass(frozen=True, eq=False)
class LLMTrace:
    """Requests in order of arrival.

    Attributes:
        arrival_s: float64 ``[N]``: seconds after the first.
        prompt_tokens: int64 ``[N]``.
        output_tokens: int64 ``[N]``.

    Example:
        >>> import torch
        >>> LLMTrace(torch.zeros(1, dtype=torch.float64), torch.tensor([12]), torch.tensor([3])).prompt_tokens.sum()
        tensor(12)
    """

    arrival_s: Tensor
    prompt_tokens: Tensor
    output_tokens: Tensor

    def __len__(self) -> int:
        return self.arrival_s.shape[0]


def load_llm_trace(which: Literal["code", "conv"] = "conv", root: Root = None) -> LLMTrace:
    """The Azure LLM inference trace of 2023: 8,819 requests for code, or 19,366 of conversations.

    Args:
        which: ``"code"`` or ``"conv"``.
        root: folder that holds ``azure-llm-trace-2023`` or its files; default: ``../shared/data``,
            ``$TORCH_EXT_DATA``.

    Returns:
        :class:`LLMTrace`, its tensors ``[N]``.

    Raises:
        InputError: another ``which``.
        FileNotFoundError: no such file.
        DataFormatError: a line that is no request, with its number.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "AzureLLMInferenceTrace_conv.csv"
        >>> _ = path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\\n2023-11-16 18:15:46.68,374,44\\n")
        >>> load_llm_trace("conv", path.parent).prompt_tokens
        tensor([374])

    Reference:
        Patel et al. 2024 (Splitwise, ISCA); github.com/Azure/AzurePublicDataset.
    """
    check_choice("which", which, WHICH)
    path = locate(FOLDER, f"AzureLLMInferenceTrace_{which}.csv", root)
    times: list[float] = []
    lengths: list[tuple[int, int]] = []
    first: datetime | None = None
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if number == 1:
                if line.strip() != HEADER:
                    raise DataFormatError(f"{path.name}, line 1: expected {HEADER!r}, got {line.strip()!r}")
                continue
            when, prompt, output = _request(path.name, number, line)
            first = when if first is None else first
            times.append((when - first).total_seconds())
            lengths.append((prompt, output))
    both = torch.tensor(lengths, dtype=torch.int64).view(-1, 2)
    return LLMTrace(torch.tensor(times, dtype=torch.float64), both[:, 0].contiguous(), both[:, 1].contiguous())


def _request(name: str, number: int, line: str) -> tuple[datetime, int, int]:
    """One line: ``2023-11-16 18:15:46.6805900,374,44``, with seven digits after the seconds, of which six count."""
    try:
        when, prompt, output = line.strip().split(",")
        seconds, _, digits = when.partition(".")
        moment = datetime.strptime(f"{seconds}.{digits[:6] or '0'}", "%Y-%m-%d %H:%M:%S.%f")
        lengths = int(prompt), int(output)
        if min(lengths) < 0:
            raise ValueError
    except ValueError:
        raise DataFormatError(
            f"{name}, line {number}: expected time,prompt tokens,output tokens, got {line.strip()!r}"
        ) from None
    return moment, *lengths
