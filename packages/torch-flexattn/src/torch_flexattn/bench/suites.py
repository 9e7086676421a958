"""What is raced, as data. Every suite also has a ``quick`` form of a few small cases, which a CPU finishes in seconds.

``paper`` follows the protocol of PyTorch's benchmark of FlexAttention (pytorch#139665): 16-bit features of width 64,
keys and values of 256 MiB whatever the length, causal over lengths, modifications at one length, then decoding. The
windows, prefixes, documents and caps (see ``variants``) are chosen here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

LENGTHS = (1024, 4096, 16384, 65536, 131072)
KV_BYTES = 256 << 20
MOST_KV_BYTES = 16 << 30
"""Of a decoding case."""
MODS = ("noop", "causal", "alibi", "sliding_window", "document", "prefix_lm", "softcap")
GYM_MODS = ("noop", "causal", "alibi", "sliding_window", "document")
TOKENS_A_DOCUMENT = 262
"""Of a mask that is built: 500 documents in 131,072 tokens."""
DECODE_MODS = ("alibi", "sliding_window", "softcap")
BIASES = ("relative_bias", "t5_bias", "head_scale", "pair_bias")


@dataclass(frozen=True)
class Attend:
    """One call of attention.

    Attributes:
        mod: name of the mask or score modification (see ``variants``).
        batch: ``B``.
        heads: ``Hq``.
        kv_heads: ``Hkv``.
        queries: ``L``; they are the last of the keys.
        keys: ``S``.
        width: ``E``, and of values.
        backward: the backward pass is timed, else the forward pass.
        page: keys of a page; 0: side by side.
    """

    mod: str
    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    width: int
    backward: bool = False
    page: int = 0

    @property
    def name(self) -> str:
        """All of it."""
        way = "backward" if self.backward else "forward"
        lengths = f"{self.keys}" if self.queries == self.keys else f"{self.queries}of{self.keys}"
        page = f"/page{self.page}" if self.page else ""
        return f"{way}/{self.mod}/b{self.batch}/h{self.heads}-{self.kv_heads}/s{lengths}/d{self.width}{page}"


@dataclass(frozen=True)
class Build:
    """Finding the blocks of a mask.

    Attributes:
        mod: name of the mask.
        length: queries, and keys.
        documents: how many, of a mask of documents.
    """

    mod: str
    length: int
    documents: int = 12

    @property
    def name(self) -> str:
        """All of it."""
        count = str(self.documents) if self.mod == "document" else ""
        return f"mask/{self.mod}{count}/s{self.length}"


Case = Attend | Build


def both_passes(case: Attend) -> list[Attend]:
    """A case forward and backward."""
    return [case, replace(case, backward=True)]


def paper(quick: bool) -> Sequence[Case]:
    """Causal over lengths, modifications at one, decoding; where the batch would be 0, no case."""
    lengths, at, budget = ((128, 256), 256, 256 << 10) if quick else (LENGTHS, 16384, KV_BYTES)
    found: list[Case] = []
    for kv_heads in (16, 2):

        def of(mod: str, queries: int, keys: int, kv_heads: int = kv_heads) -> list[Attend]:
            batch = budget // (4 * kv_heads * keys * 64)
            return [Attend(mod, batch, 16, kv_heads, queries, keys, 64)] if batch else []

        trained = [c for n in lengths for c in of("causal", n, n)]
        trained += [c for mod in MODS if mod != "causal" for c in of(mod, at, at)]
        found += [each for case in trained for each in both_passes(case)]
        found += [c for n in lengths for c in of("noop", 1, n)]
        found += [c for mod in DECODE_MODS for c in of(mod, 1, at)]
    return found[:: len(found) // 6] if quick else found


def gym(quick: bool) -> Sequence[Case]:
    """The shapes of attention-gym's benchmark."""
    if quick:
        return [c for mod in GYM_MODS for c in both_passes(Attend(mod, 1, 4, 2, 256, 256, 32))][::3]
    return [
        each
        for kv_heads in (16, 4)
        for width in (64, 128)
        for length in (2048, 4096, 8192, 16384, 32768)
        for mod in GYM_MODS
        for each in both_passes(Attend(mod, 4, 16, kv_heads, length, length, width))
    ]


def decode(quick: bool) -> Sequence[Case]:
    """One query a sequence, over batches, lengths and groups of heads."""
    if quick:
        return [Attend("noop", 2, 6, 2, 1, 256, 32), Attend("sliding_window", 2, 4, 4, 1, 256, 32)]
    return [
        Attend("noop", batch, heads, kv_heads, 1, keys, 128)
        for heads, kv_heads in ((32, 4), (24, 4), (32, 8), (8, 8))
        for batch in (1, 8, 32, 128)
        for keys in (1024, 8192, 32768, 131072)
        if 4 * batch * kv_heads * keys * 128 <= MOST_KV_BYTES
    ]


def paged(quick: bool) -> Sequence[Case]:
    """Decoding from pages, beside our own from keys that lie side by side."""
    if quick:
        return [Attend("noop", 2, 4, 2, 1, 96, 32, page=page) for page in (16, 64)]
    return [
        Attend("noop", batch, 32, 8, 1, keys, 128, page=page)
        for batch in (8, 64)
        for keys in (4096, 16384)
        for page in (16, 64)
    ]


def mask(quick: bool) -> Sequence[Case]:
    """Blocks of masks; documents of 262 tokens on average."""
    lengths = (512,) if quick else (8192, 131072, 1 << 20)
    mods = ("causal", "sliding_window", "document", "prefix_lm")
    return [Build(mod, n, max(2, n // TOKENS_A_DOCUMENT)) for n in lengths for mod in mods]


def biasgrad(quick: bool) -> Sequence[Case]:
    """Backward passes that give gradients to what a score modification learns."""
    sizes = (1, 2, 2, 128, 128, 32) if quick else (1, 16, 16, 4096, 4096, 64)
    return [Attend(mod, *sizes, backward=True) for mod in BIASES]


SUITES: dict[str, Callable[[bool], Sequence[Case]]] = {
    "paper": paper,
    "gym": gym,
    "decode": decode,
    "paged": paged,
    "mask": mask,
    "biasgrad": biasgrad,
}
