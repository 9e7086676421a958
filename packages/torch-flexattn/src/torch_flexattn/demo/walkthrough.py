"""The demo from start to end: pack molecules, look at their mask, check and time attention, train, write molecules."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from .. import masks, reference
from ..block_mask import BlockMask
from ..build import create_block_mask
from ..functional import flex_attention

if TYPE_CHECKING:
    from .language_model import LanguageModel
    from .molecules import Packed

Progress = Callable[[float, str], None]
LENGTH, LONG = 512, 4096
BATCH, BLOCK = 8, 64
STEPS, SECONDS = 200, 30.0
HELD_OUT = 10
"""One molecule of so many is not trained on."""
SAMPLES, LONGEST = 64, 80
RATE = 4e-3


def section(progress: Progress, data: Path | None, seed: int) -> dict[str, Any]:
    """Show the package: a language model of molecules, packed into rows, that sees no molecule but its own.

    Args:
        progress: called with a fraction and a message.
        data: not used: the molecules come with RDKit.
        seed: of every random choice.

    Raises:
        ImportError: RDKit or matplotlib is missing; the message names the pip command.

    Example:
        >>> from torch_flexattn.demo import section
        >>> result = section(lambda fraction, message: None, None, 0)  # doctest: +SKIP
    """
    progress(0.0, "loading libraries")
    from . import language_model, molecules, pictures  # here, so that a missing extra is named when the demo runs

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the model is small, and a busy machine then disturbs the times less
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return _section(progress, seed, language_model, molecules, pictures)
    finally:
        torch.set_num_threads(threads)


def _section(progress: Progress, seed: int, language_model: Any, molecules: Any, pictures: Any) -> dict[str, Any]:
    random = torch.Generator().manual_seed(seed)
    strings = molecules.smiles()
    strings = [strings[n] for n in torch.randperm(len(strings), generator=random).tolist()]
    numbers = molecules.vocabulary(strings)
    held_out, kept = strings[::HELD_OUT], [s for n, s in enumerate(strings) if n % HELD_OUT]
    packed, unseen = (molecules.pack(some, numbers, LENGTH) for some in (kept, held_out))
    long = molecules.pack(kept, numbers, LONG)
    used = float(packed.counted.float().mean())
    what = f"{len(kept):,} molecules into {packed.document.shape[0]} rows of {LENGTH}, {used:.0%} filled"
    rows = [_row("pack", what)]

    progress(0.05, "building masks")
    block_mask, row = _mask_row(packed.document[:BATCH])
    rows += [row, _mask_row(long.document[:1])[1]]
    progress(0.08, "checking against the dense reference")
    rows.append(_check(block_mask, random))
    ratios = []
    for place, some in enumerate((packed.document[:BATCH], long.document[:1])):
        progress(0.1 + 0.05 * place, f"timing attention over rows of {some.shape[1]:,}")
        timed, ratio = _race(some, language_model.HEADS, language_model.WIDTH // language_model.HEADS, random)
        rows += timed
        ratios.append(ratio)

    model = language_model.LanguageModel(len(numbers), LENGTH)
    before = _held_out(model, unseen, language_model.loss)
    losses = _train(model, packed, language_model.loss, random, lambda f, m: progress(0.2 + 0.65 * f, m))
    progress(0.87, "writing molecules")
    after = _held_out(model, unseen, language_model.loss)
    for when, nats in (("before", before), (f"after {len(losses)} steps", after)):
        rows.append({**_row("train", f"loss of {len(held_out)} held-out molecules {when}"), "nats": round(nats, 3)})
    valid = _written(model, molecules, numbers, random)
    rows.append({**_row("write", f"of {SAMPLES} molecules that it writes RDKit reads"), "valid %": round(100 * valid)})
    progress(0.93, "timing a training step")
    rows += _race_steps(model, packed, language_model.loss)

    progress(0.97, "drawing")
    figures = [pictures.mask(block_mask, 0), pictures.losses(losses, (before, after))]
    progress(1.0, "done")
    return {
        "title": "A language model over packed molecules",
        "summary": (
            f"Held-out loss falls from {before:.2f} to {after:.2f} nats a character in {len(losses)} steps; with "
            f"rows of {LONG:,} attention and its gradient take {1 / ratios[1]:.0%} of the time of PyTorch's own with a "
            f"dense mask, with rows of {LENGTH} {1 / ratios[0]:.0%}."
        ),
        "rows": rows,
        "figures": figures,
        "notes": [
            "The molecules: the first 4,999 of the NCI's open database, which come with RDKit, as SMILES strings. "
            "Several share a row; the mask is masks.causal() & masks.document(doc_ids=…), new at every step.",
            "Float32, one CPU thread, medians of samples taken in turns. Ratios are the peer's time over ours: above "
            "one, ours is faster. The peer is scaled_dot_product_attention with the mask as a tensor of bools, made "
            "before the clock starts; making our blocks has rows of its own, and counts in a training step.",
            f"The model: {language_model.LAYERS} layers of width {language_model.WIDTH}, {language_model.HEADS} heads; "
            f"AdamW on {BATCH} rows a step, {STEPS} steps, or as many as end within {SECONDS:.0f} seconds.",
            "A molecule counts as valid where RDKit reads it. That it is new or stable is not looked at.",
        ],
    }


def _blocks(document: Tensor) -> BlockMask:
    """Causal attention inside each document of ``[B, L]``."""
    batch, length = document.shape
    mask = masks.causal() & masks.document(doc_ids=document)
    return create_block_mask(mask, batch, None, length, length, BLOCK_SIZE=BLOCK)


def _dense(document: Tensor) -> Tensor:
    """The same as bools ``[B, 1, L, L]``."""
    same = document[:, None, :, None] == document[:, None, None, :]
    return same & torch.ones(same.shape[-2:], dtype=torch.bool).tril()


def _mask_row(document: Tensor) -> tuple[BlockMask, dict[str, Any]]:
    block_mask = _blocks(document)
    took = _medians({"": lambda: _blocks(document)})[""]
    partial, full = block_mask.nnz_blocks()
    seen = block_mask.visible_pairs() / block_mask.numel()
    batch, length = document.shape
    what = (
        f"{batch} × {length:,} characters: {block_mask.sparsity():.0f}% of blocks hidden, {partial} visible in part, "
        f"{full} in full; {seen:.1%} of pairs visible"
    )
    return block_mask, {**_row("mask", what), "ms": _rounded(took)}


def _check(block_mask: BlockMask, random: torch.Generator) -> dict[str, Any]:
    """Output and gradients of one row against the dense reference in float64."""
    one = block_mask[0]
    q, k, v, grad = (torch.randn(1, 2, LENGTH, 16, generator=random).requires_grad_() for _ in range(4))
    out = flex_attention(q, k, v, block_mask=one)
    meant = reference.attention(q, k, v, mask_mod=one.mod)[0]
    ours = out, *torch.autograd.grad(out, (q, k, v), grad)
    theirs = meant, *torch.autograd.grad(meant, (q, k, v), grad.double())
    worst = max(float((a.detach() - b.detach()).abs().max()) for a, b in zip(ours, theirs))
    if worst > 1e-4:
        raise ArithmeticError(f"attention differs from the reference by {worst:.1e}")
    return _row("check", f"output and gradients against the dense reference in float64: largest error {worst:.0e}")


def _race(document: Tensor, heads: int, width: int, random: torch.Generator) -> tuple[list[dict[str, Any]], float]:
    """Attention and its gradient: ours, and PyTorch's with the mask as a tensor."""
    batch, length = document.shape
    q, k, v = (torch.randn(batch, heads, length, width, generator=random).requires_grad_() for _ in range(3))
    grad = torch.randn(batch, heads, length, width, generator=random)
    block_mask, dense = _blocks(document), _dense(document)

    def ours() -> Tensor:
        return flex_attention(q, k, v, block_mask=block_mask)

    def peer() -> Tensor:
        return scaled_dot_product_attention(q, k, v, attn_mask=dense)

    torch.testing.assert_close(ours(), peer(), rtol=1e-4, atol=1e-4)
    ways = {"ours": ours, "PyTorch's, dense mask": peer}
    took = _medians({name: lambda way=way: torch.autograd.grad(way(), (q, k, v), grad) for name, way in ways.items()})
    return _timed("attend", f"attention and gradient, {batch} × {length:,}", took)


def _train(
    model: LanguageModel, packed: Packed, loss: Callable[..., Tensor], random: torch.Generator, progress: Progress
) -> list[float]:
    """The loss of every step."""
    adam = torch.optim.AdamW(model.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.LambdaLR(adam, _share_of_rate)
    found: list[float] = []
    began = time.perf_counter()
    while len(found) < STEPS and time.perf_counter() - began < SECONDS:
        rows = torch.randint(packed.document.shape[0], (BATCH,), generator=random)
        block_mask = _blocks(packed.document[rows])
        value = loss(model, packed, rows, lambda q, k, v, m=block_mask: flex_attention(q, k, v, block_mask=m))
        adam.zero_grad()
        value.backward()
        adam.step()
        schedule.step()
        found.append(value.item())
        done = max(len(found) / STEPS, (time.perf_counter() - began) / SECONDS)
        progress(min(done, 1.0), f"step {len(found)}: loss {found[-1]:.2f}")
    return found


def _share_of_rate(step: int) -> float:
    """Up in 20 steps, then down to 0 along a cosine."""
    return min(1.0, (step + 1) / 20) * (1 + math.cos(math.pi * step / STEPS)) / 2


@torch.no_grad()
def _held_out(model: LanguageModel, unseen: Packed, loss: Callable[..., Tensor]) -> float:
    block_mask = _blocks(unseen.document)
    rows = torch.arange(unseen.document.shape[0])
    return loss(model, unseen, rows, lambda q, k, v: flex_attention(q, k, v, block_mask=block_mask)).item()


@torch.no_grad()
def _written(model: LanguageModel, molecules: Any, numbers: dict[str, int], random: torch.Generator) -> float:
    """Share of valid molecules among those that the model writes, a character at a time; too long ones are wrong."""
    tokens = torch.zeros(SAMPLES, 1, dtype=torch.int64)
    causal, place = masks.causal(), torch.arange(LONGEST + 1)
    for _ in range(LONGEST):
        logits = model(tokens, place[: tokens.shape[1]], lambda q, k, v: flex_attention(q, k, v, block_mask=causal))
        drawn = torch.multinomial(logits[:, -1].softmax(-1), 1, generator=random)
        tokens = torch.cat([tokens, drawn], 1)
    characters = list(numbers)
    texts = ["".join(characters[n] for n in line[1:]) for line in tokens.tolist()]
    return molecules.valid([text.partition(molecules.END)[0] for text in texts if molecules.END in text]) / SAMPLES


def _race_steps(model: LanguageModel, packed: Packed, loss: Callable[..., Tensor]) -> list[dict[str, Any]]:
    """Forward and backward of a training step by both ways; ours with the making of the mask, the peer's without."""
    rows = torch.arange(BATCH)
    document, dense = packed.document[:BATCH], _dense(packed.document[:BATCH])

    def ours() -> None:
        block_mask = _blocks(document)
        loss(model, packed, rows, lambda q, k, v: flex_attention(q, k, v, block_mask=block_mask)).backward()

    def peer() -> None:
        loss(model, packed, rows, lambda q, k, v: scaled_dot_product_attention(q, k, v, attn_mask=dense)).backward()

    took = _medians({"ours": ours, "PyTorch's, dense mask": peer})
    return _timed("train", "forward and backward of a step", took)[0]


def _medians(calls: dict[str, Callable[[], Any]], rounds: int = 9) -> dict[str, float]:
    """Median milliseconds of each call, taken in turns."""
    took: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(rounds + 1):
        for name, call in calls.items():
            began = time.perf_counter()
            call()
            if turn:  # the first round warms up
                took[name].append(1e3 * (time.perf_counter() - began))
    return {name: median(ms) for name, ms in took.items()}


def _timed(step: str, what: str, took: dict[str, float]) -> tuple[list[dict[str, Any]], float]:
    """Rows of ours and of one peer, and the peer's time over ours."""
    (_, ours), (_, peer) = took.items()
    ratios = (None, _rounded(peer / ours))
    rows = [
        {**_row(step, f"{what}: {name}"), "ms": _rounded(ms), "ratio": ratio}
        for (name, ms), ratio in zip(took.items(), ratios)
    ]
    return rows, peer / ours


def _row(step: str, what: str) -> dict[str, Any]:
    return {"step": step, "what": what, "ms": None, "ratio": None, "nats": None, "valid %": None}


def _rounded(value: float) -> float:
    """Three digits: what the clock can tell."""
    return float(f"{value:.3g}")
