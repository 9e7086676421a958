"""A small causal transformer over characters, whose attention is handed to it, and its training."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from .molecules import Packed

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Query, key and value ``[B, H, L, E]`` to the output of that shape."""
WIDTH, HEADS, LAYERS = 64, 4, 2


class Layer(nn.Module):
    """Attention and a feed-forward net, each after a normalisation and beside a residual."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.into, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor, attend: Attend) -> Tensor:
        batch, length, width = x.shape
        projected = self.into(self.before(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = projected.permute(2, 0, 3, 1, 4)
        x = x + self.out(attend(query, key, value).transpose(1, 2).reshape(batch, length, width))
        return x + self.feed(self.between(x))


class LanguageModel(nn.Module):
    """Logits of the next character ``[B, L, characters]`` from characters and their places in their molecules."""

    def __init__(self, characters: int, places: int) -> None:
        super().__init__()
        self.character, self.place = nn.Embedding(characters, WIDTH), nn.Embedding(places, WIDTH)
        self.layers = nn.ModuleList(Layer(WIDTH, HEADS) for _ in range(LAYERS))
        self.last = nn.LayerNorm(WIDTH)
        self.logits = nn.Linear(WIDTH, characters)

    def forward(self, tokens: Tensor, place: Tensor, attend: Attend) -> Tensor:
        x = self.character(tokens) + self.place(place)
        for layer in self.layers:
            x = layer(x, attend)
        return self.logits(self.last(x))


def loss(model: LanguageModel, packed: Packed, rows: Tensor, attend: Attend) -> Tensor:
    """Mean cross entropy, in nats, of the characters that are to be predicted in some rows."""
    tokens = packed.tokens[rows]
    logits = model(tokens[:, :-1], packed.place[rows], attend)
    wanted = packed.counted[rows]
    return cross_entropy(logits[wanted], tokens[:, 1:][wanted])
