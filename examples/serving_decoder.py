"""A small decoder with random weights, over pages of a cache or on one request alone; flexattn_serving.py serves it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch_flexattn import BatchStep, PagedKVCache, masks

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""Number of the layer, query `[T, heads, E]`, key and value `[T, kv_heads, E]` to the output, like the query."""
CAUSAL = masks.causal()


def rotated(x: Tensor, positions: Tensor) -> Tensor:
    """Rotary embedding of `x` `[T, heads, E]` at positions `[T]`."""
    half = x.shape[2] // 2
    speeds = 10_000.0 ** (-torch.arange(half, device=x.device, dtype=torch.float64) / half)
    angles = positions[:, None, None] * speeds
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x.split(half, 2)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], 2)


class Layer(nn.Module):
    """Attention and a feed-forward net, each after a normalisation and beside a residual."""

    def __init__(self, width: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        size = width // heads
        self.sizes = (heads, kv_heads, kv_heads)
        self.before, self.between = nn.RMSNorm(width), nn.RMSNorm(width)
        self.into = nn.Linear(width, sum(self.sizes) * size, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor, positions: Tensor, number: int, attend: Attend) -> Tensor:
        projected = self.into(self.before(x)).unflatten(1, (sum(self.sizes), -1))
        query, key, value = projected.split(self.sizes, 1)
        x = x + self.out(attend(number, rotated(query, positions), rotated(key, positions), value).flatten(1))
        return x + self.feed(self.between(x))


class Decoder(nn.Module):
    """What follows tokens, the most likely: they are of any requests, one behind the other."""

    def __init__(self, tokens: int, width: int, heads: int, kv_heads: int, layers: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(tokens, width)
        nn.init.normal_(self.embed.weight, std=0.02)  # what a token attends to outweighs the token itself
        self.layers = nn.ModuleList(Layer(width, heads, kv_heads) for _ in range(layers))
        self.last, self.logits = nn.RMSNorm(width), nn.Linear(width, tokens, bias=False)

    def forward(self, tokens: Tensor, positions: Tensor, wanted: Tensor, attend: Attend) -> Tensor:
        """The next token behind each of those at `wanted`; `tokens` and `positions` are `[T]`."""
        x = self.embed(tokens)
        for number, layer in enumerate(self.layers):
            x = layer(x, positions, number, attend)
        return self.logits(self.last(x[wanted])).argmax(1)


def over_pages(caches: Sequence[PagedKVCache], step: BatchStep) -> Attend:
    """Attention of a step's tokens, whose keys and values go into the cache of the layer.

    Requests that decode are one call, each part of a prompt another.
    """
    calls = [([chunk.seq for chunk in step.decode], 1)] if step.decode else []
    calls += [([chunk.seq], chunk.tokens) for chunk in step.prefill]

    def attend(layer: int, *projected: Tensor) -> Tensor:
        out = []
        parts = zip(*(x.split([len(seqs) * tokens for seqs, tokens in calls]) for x in projected))
        for (seqs, tokens), part in zip(calls, parts):
            query, key, value = (x.unflatten(0, (len(seqs), tokens)).transpose(1, 2) for x in part)
            caches[layer].write(seqs, key, value)
            found = caches[layer].attend(query, seqs, mask_mod=CAUSAL)
            out.append(found.transpose(1, 2).flatten(0, 1))
        return torch.cat(out)

    return attend


@torch.no_grad()
def alone(model: Decoder, prompt: Sequence[int], count: int, device: torch.device) -> list[int]:
    """What a request gets without pages, others or this package's attention: `count` tokens."""
    past: dict[int, tuple[Tensor, Tensor]] = {}

    def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if layer in past:
            key, value = (torch.cat(both) for both in zip(past[layer], (key, value)))
        past[layer] = key, value
        rows = (x.transpose(0, 1).unsqueeze(0) for x in (query, key, value))
        return scaled_dot_product_attention(*rows, is_causal=len(query) > 1, enable_gqa=True)[0].transpose(0, 1)

    found: list[int] = []
    new = list(prompt)
    for _ in range(count):
        positions = torch.arange(len(new), device=device) + len(prompt) + len(found) - len(new)
        found += model(torch.tensor(new, device=device), positions, positions[-1:] - positions[0], attend).tolist()
        new = found[-1:]
    return found
