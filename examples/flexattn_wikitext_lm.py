"""Train a small language model on whole Wikipedia articles packed into long rows, each blind to the others.

    python examples/flexattn_wikitext_lm.py --steps 200 --root ../shared/data

A row holds the end of one article, others in full and the start of the next. `masks.causal() & masks.document(bounds)`
keeps them apart; the bounds are new at every step, and nothing of the size of `length × length` is made. Characters are
the tokens, and ALiBi tells how far apart they are, so the model knows no positions. `--attention dense` trains the same
model by PyTorch's own attention, with the mask and ALiBi as one tensor. `--device cuda` takes a GPU.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch_flexattn import create_block_mask, create_mask, flex_attention, masks, scores
from torch_flexattn.data import load_wikitext_documents

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


class Text:
    """The characters of all articles of a split, one after the other, and where each article begins and ends."""

    def __init__(self, articles: list[str], characters: str = "", device: str = "cpu") -> None:
        text = "".join(articles)
        self.characters = characters or "".join(sorted(set(text)))
        number = {c: n for n, c in enumerate(self.characters, 1)}  # 0 is any other
        self.tokens = torch.tensor([number.get(c, 0) for c in text], device=device)
        self.starts = torch.tensor([0, *(len(article) for article in articles)]).cumsum(0)

    def row(self, start: int, length: int) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens `[length]`, those after them, and the bounds of documents inside the row, from 0 to `length`."""
        piece = self.tokens[start : start + length + 1]
        inside = self.starts[(self.starts > start) & (self.starts < start + length)] - start
        return piece[:-1], piece[1:], torch.cat([torch.tensor([0]), inside, torch.tensor([length])])


class LanguageModel(nn.Module):
    """Logits `[length, characters]` of what follows each token of one row."""

    def __init__(self, characters: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.heads = heads
        self.embed = nn.Embedding(characters, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers + 1))
        self.into = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(layers))
        self.mix = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.feed = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in range(layers)
        )
        self.logits = nn.Linear(width, characters)

    def forward(self, tokens: Tensor, attend: Attend) -> Tensor:
        x = self.embed(tokens)
        for norm, into, mix, feed in zip(self.norms, self.into, self.mix, self.feed):
            projected = into(norm(x)).unflatten(1, (3, self.heads, -1))  # [length, 3, heads, width]
            query, key, value = projected.permute(1, 2, 0, 3).unsqueeze(1)
            x = x + mix(attend(query, key, value)[0].transpose(0, 1).flatten(1))
            x = x + feed(x)
        return self.logits(self.norms[-1](x))


def attention_inside(bounds: Tensor, heads: int, kind: str) -> Attend:
    """Causal attention with ALiBi inside each document of a row, by this package or with a dense tensor."""
    length, device = int(bounds[-1]), bounds.device
    mask, bias = masks.causal() & masks.document(bounds.int()), scores.alibi(heads).to(device)
    if kind == "flex":
        blocks = create_block_mask(mask, None, None, length, length, device=device)
        return lambda query, key, value: flex_attention(query, key, value, score_mod=bias, block_mask=blocks)
    i, zero = torch.arange(length, device=device), torch.tensor(0, device=device)
    head = torch.arange(heads, device=device)[:, None, None]
    dense = bias(torch.tensor(0.0, device=device), zero, head, i[:, None], i)
    dense = dense.masked_fill(~create_mask(mask, None, None, length, length)[0], float("-inf"))
    return lambda query, key, value: scaled_dot_product_attention(query, key, value, attn_mask=dense)


def row_loss(model: LanguageModel, text: Text, start: int, length: int, kind: str) -> Tensor:
    """Mean cross entropy of a row, in nats a character."""
    tokens, following, bounds = text.row(start, length)
    return cross_entropy(model(tokens, attention_inside(bounds.to(tokens.device), model.heads, kind)), following)


def describe_whole(text: Text) -> str:
    """The mask of all articles of a text as one row."""
    length, bounds = len(text.tokens), text.starts.to(text.tokens.device).int()
    began = time.perf_counter()
    blocks = create_block_mask(masks.document(bounds, causal=True), None, None, length, length, device=bounds.device)
    partial, full = blocks.nnz_blocks()
    took = time.perf_counter() - began
    return f"{partial:,} partial and {full:,} full blocks, {blocks.sparsity():.2f} % hidden, found in {took:.2f} s"


@torch.no_grad()
def test_loss(model: LanguageModel, text: Text, length: int, rows: int, kind: str) -> float:
    """Mean loss of rows spread over a text."""
    starts = torch.linspace(0, len(text.tokens) - length - 1, rows).long().tolist()
    return sum(row_loss(model, text, start, length, kind).item() for start in starts) / rows


def main(arguments: list[str] | None = None) -> int:
    line = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    line.add_argument("--steps", type=int, default=200)
    line.add_argument("--length", type=int, default=4096, help="characters of a row (default: %(default)s)")
    line.add_argument("--width", type=int, default=64)
    line.add_argument("--heads", type=int, default=4)
    line.add_argument("--layers", type=int, default=2)
    line.add_argument("--rows", type=int, default=8, help="rows of the test loss (default: %(default)s)")
    line.add_argument("--attention", choices=("flex", "dense"), default="flex")
    line.add_argument("--root", help="folder that holds wikitext-2; default: ../shared/data, or $TORCH_EXT_DATA")
    line.add_argument("--device", default="cpu", help="where to train, cpu or cuda (default: %(default)s)")
    line.add_argument("--seed", type=int, default=0)
    line.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = line.parse_args(arguments)
    for name in ("steps", "length", "width", "heads", "layers", "rows", "threads"):
        if getattr(options, name) < 1:
            line.error(f"--{name} must be at least 1, got {getattr(options, name)}")
    if options.width % options.heads:
        line.error(f"--width must be a multiple of --heads, got {options.width} and {options.heads}")
    try:
        torch.empty(0, device=options.device)
    except (RuntimeError, AssertionError) as error:
        line.error(f"--device {options.device} cannot be used: {str(error).splitlines()[0]}")
    try:
        articles = [load_wikitext_documents(split, options.root) for split in ("valid", "test")]
    except FileNotFoundError as error:
        print(f"{error}: --root names the folder that holds wikitext-2", file=sys.stderr)
        return 2

    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    training = Text(articles[0], device=options.device)  # the two splits that are small
    test = Text(articles[1], training.characters, options.device)
    model = LanguageModel(len(training.characters) + 1, options.width, options.heads, options.layers)
    model.to(options.device)
    print(f"{len(training.tokens):,} characters, {len(training.starts) - 1} articles, rows of {options.length}")
    print(f"mask of all {len(test.tokens):,} characters of the test split: {describe_whole(test)}")
    print(f"test loss {test_loss(model, test, options.length, options.rows, options.attention):.3f} nats before")
    adam = torch.optim.AdamW(model.parameters(), lr=3e-3)
    took = []
    for step in range(1, options.steps + 1):
        start = int(torch.randint(len(training.tokens) - options.length - 1, ()))
        began = time.perf_counter()
        loss = row_loss(model, training, start, options.length, options.attention)
        adam.zero_grad()
        loss.backward()
        adam.step()
        took.append(1e3 * (time.perf_counter() - began))
        if step == 1 or step % 20 == 0 or step == options.steps:
            print(f"  step {step}: loss {loss.item():.3f}", flush=True)
    after = test_loss(model, test, options.length, options.rows, options.attention)
    print(f"test loss {after:.3f} nats after {options.steps} steps, {median(took):.0f} ms each, by {options.attention}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
