"""T5's learnt bias of distances, as a module."""

from __future__ import annotations

import functools

import torch
from torch import Tensor, nn

from ..mods import ScoreMod
from ..program import Program
from ..scores import t5_bias, t5_buckets
from ..scores.bias import in_buckets
from .arguments import check_sizes


@functools.lru_cache(maxsize=64)
def _recorded(
    buckets: int, heads: int, bidirectional: bool, max_distance: int, dtype: torch.dtype
) -> tuple[Program, tuple[bool, ...], tuple[int | float, ...]]:
    """The program of :func:`t5_bias`, which of its captures is the weight, and its numbers."""
    weight = torch.zeros(buckets, heads, dtype=dtype)
    mod = t5_bias(weight, bidirectional=bidirectional, max_distance=max_distance)
    return mod.program, tuple(capture is weight for capture in mod.captures), mod.scalars


class T5RelativeBias(nn.Module):
    """A learnt number for each head and bucket of distances, which is added to scores.

    Its one parameter, ``weight`` ``[num_buckets, num_heads]``, is that of T5's ``relative_attention_bias``.

    Args:
        num_buckets: of both directions together, if ``bidirectional``.
        num_heads: of the queries.
        bidirectional: keys after the query have half of the buckets; otherwise they are taken to be at it.
        max_distance: from here on there is one bucket.
        device: of the parameter.
        dtype: of the parameter.

    Shapes:
        ``score_mod()`` is for :func:`flex_attention`; called with two lengths the module gives the dense bias
        ``[1, num_heads, L, S]``.

    Raises:
        InputError: too few buckets, ``max_distance`` not beyond the exact buckets.
        KindError: no integer.

    Example:
        >>> import torch
        >>> from torch_flexattn import flex_attention
        >>> from torch_flexattn.nn import T5RelativeBias
        >>> bias, q = T5RelativeBias(32, 2), torch.randn(1, 2, 6, 4)
        >>> flex_attention(q, q, q, score_mod=bias.score_mod()).sum().backward()
        >>> bias.weight.grad.shape
        torch.Size([32, 2])

    Reference:
        Raffel et al. 2020 (T5), section 2.1 and the authors' code.
    """

    buckets: Tensor

    def __init__(
        self,
        num_buckets: int,
        num_heads: int,
        *,
        bidirectional: bool = True,
        max_distance: int = 128,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_sizes(num_heads=num_heads)
        buckets = t5_buckets(num_buckets, bidirectional=bidirectional, max_distance=max_distance)
        self.bidirectional, self.max_distance = bidirectional, max_distance
        self.register_buffer("buckets", buckets.to(device), persistent=False)
        self.weight = nn.Parameter(torch.empty(num_buckets, num_heads, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As ``nn.Embedding``: normal, of deviation 1."""
        nn.init.normal_(self.weight)

    def score_mod(self) -> ScoreMod:
        """The bias as a score modification; gradients reach :attr:`weight`."""
        if torch.compiler.is_dynamo_compiling():
            return in_buckets(self.weight, self.buckets, bidirectional=self.bidirectional)
        buckets, heads = self.weight.shape
        known = _recorded(buckets, heads, self.bidirectional, self.max_distance, self.weight.dtype)
        tensors = (self.weight if is_weight else self.buckets for is_weight in known[1])
        return ScoreMod(known[0], tuple(tensors), known[2])

    def forward(self, q_len: int, kv_len: int) -> Tensor:
        device = self.weight.device
        ahead = torch.arange(kv_len, device=device) - torch.arange(q_len, device=device).unsqueeze(1)  # j - i
        distance = ahead.abs() if self.bidirectional else (-ahead).clamp(min=0)
        place = self.buckets[distance.clamp(max=self.max_distance)]
        if self.bidirectional:
            place = torch.where(ahead > 0, place + self.weight.shape[0] // 2, place)
        return self.weight[place].permute(2, 0, 1).unsqueeze(0)

    def extra_repr(self) -> str:
        """Sizes."""
        buckets, heads = self.weight.shape
        return f"{buckets}, {heads}, bidirectional={self.bidirectional}, max_distance={self.max_distance}"
