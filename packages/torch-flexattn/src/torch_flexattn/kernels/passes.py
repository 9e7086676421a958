"""One pass of a call on a GPU, and the kernels that it may be handed to."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal

import torch
from torch import Tensor

from ..mods import MaskMod
from .launch.again import Again
from .triton import attention as portable
from .triton import decode
from .triton import deterministic as ordered
from .triton.block_runs import BLOCK
from .triton.layout import last_together, without_gaps

Name = Literal["decode", "hopper", "triton"]
NAMES: tuple[Name, ...] = ("decode", "hopper", "triton")
"""Of kernels, the first that can serve being the best."""


@dataclass(frozen=True, eq=False)
class Pass:
    """What is asked of kernels.

    Attributes:
        inputs: ``q, k, v``; of a backward pass ``grad_out, grad_lse, q, k, v, out, lse``.
        options: of the call: those that all kernels take.
        kv_lens: as of the call.
        dropout_p: as of the call.
        seed: as of the call.
        check: as of the call.
        products: how float32 is multiplied; ``None``: as PyTorch's switch says.
        backward: which pass.
        deterministic: of a backward pass: whether two runs must give equal bits.
        again: of a forward pass that is going to be made again: learns how.
    """

    inputs: tuple[Any, ...]
    options: dict[str, Any]
    kv_lens: Tensor | None
    dropout_p: float
    seed: int | Tensor
    check: bool
    products: str | None = None
    backward: bool = False
    deterministic: bool = False
    again: Again | None = None

    @property
    def features(self) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value."""
        return self.inputs[2:5] if self.backward else self.inputs

    @property
    def width(self) -> int:
        """The widest features."""
        q, _, v = self.features
        return max(q.shape[3], v.shape[3])

    @property
    def block(self) -> tuple[int, int]:
        """Queries and keys of a block of the mask."""
        mask = self.options["mask"]
        return BLOCK if mask is None else mask.block

    def compiled_from(self, name: Name) -> Any:
        """What tells the kernels of one call from those of another: what they are compiled from, and where they run."""
        q, _, v = self.features
        mask, score = self.options["mask"], self.options["score"]
        mod = mask if mask is None or isinstance(mask, MaskMod) else mask.mod
        programs = (None if mod is None else mod.program for mod in (score, mod))
        block = None if isinstance(mask, MaskMod) else self.block
        modes = self.deterministic, self._seen_alone() if self.options.get("batch_invariant") else None
        return name, self.backward, q.shape[3], v.shape[3], q.dtype, q.device, block, *modes, *programs

    def _seen_alone(self) -> Any:
        """What else may decide whether tiles fit: calls that differ in it must not change one another's tiles."""
        (q, k, _), options = self.features, self.options
        of_offset, absent = type(options["q_offset"]), [options[name] is None for name in ("sinks", "descales")]
        return q.shape[1:3], k.shape[1], k.dtype, self.kv_lens is None, of_offset, options["want_max"], *absent

    def why_not(self, name: Name) -> str | None:
        """Why kernels cannot serve, or ``None``."""
        q, k, v = self.features
        mask = self.options["mask"]
        if name == "triton":
            return None
        if name == "decode":
            if self.backward:
                return "the decode kernels have no backward pass"
            return why_not_decode(q, mask, self.dropout_p)
        reason = why_not_hopper(q.device)
        if reason is not None:
            return reason
        from .hopper import requirements

        if self.backward:
            return requirements.why_not_backward(
                self.inputs[0], q, k, v, mask, self.kv_lens, self.dropout_p, self.deterministic
            )
        return requirements.why_not_forward(q, k, v, mask, self.kv_lens, self.dropout_p)

    def run(self, name: Name, tiles: Any = None) -> Any:
        """Launch kernels; ``tiles``: theirs, or those of their own choice."""
        options = self.options if self.again is None else {**self.options, "again": self.again}
        if name == "hopper":
            kernels = hopper_kernels(self.features[0].device)
            assert kernels is not None
            launch = kernels.backward if self.backward else kernels.forward
            return launch(*self.inputs, tiles=tiles, **options)
        if name == "decode":
            return decode.decode(*self.inputs, kv_lens=self.kv_lens, tiles=tiles, products=self.products, **options)
        if self.deterministic:
            return ordered.backward(
                *self.inputs, kv_lens=self.kv_lens, dropout_p=self.dropout_p, seed=self.seed, tiles=tiles,
                products=self.products, **options,
            )  # fmt: skip
        launch = portable.backward if self.backward else portable.forward
        return launch(
            *self.inputs, kv_lens=self.kv_lens, dropout_p=self.dropout_p, seed=self.seed, check=self.check,
            tiles=tiles, products=self.products, **options,
        )  # fmt: skip


def laid_out(
    q: Tensor, k: Tensor, v: Tensor, kv_lens: Tensor | None, again: Again | None, options: dict[str, Any]
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Again | None]:
    """Inputs of a forward pass as kernels read them, in ``options`` as well.

    ``again`` needs objects that can be told apart, and learns nothing of copies, which the next call comes without.
    """
    if again is not None:
        q, k, v, sinks = q.detach(), k.detach(), v.detach(), options["sinks"]
        options["sinks"] = None if sinks is None else sinks.detach()
    given = q, k, v, options["sinks"]
    q, k, v = last_together(q), last_together(k), last_together(v)
    kv_lens = without_gaps(kv_lens, options)
    if any(a is not b for a, b in zip(given, (q, k, v, options["sinks"]))):
        again = None
    return q, k, v, kv_lens, again


def why_not_decode(q: Tensor, mask: Any, dropout_p: float) -> str | None:
    """Why the decode kernels cannot serve, or ``None``."""
    if decode.serves(q, mask, dropout_p):
        return None
    if dropout_p:
        return f"the decode kernels have no dropout, got dropout_p={dropout_p}"
    if decode.serves(q, None):
        return (
            f"the decode kernels take queries of one block of the mask, got {q.shape[2]} in blocks of {mask.block[0]}"
        )
    return f"the decode kernels take 1 to {decode.MOST_QUERIES} queries, got {q.shape[2]}"


def why_not_hopper(device: torch.device) -> str | None:
    """Why a device has no Hopper kernels, or ``None``."""
    if hopper_kernels(device) is not None:
        return None
    found = f"{device.type}"
    if device.type == "cuda":
        found = "compute capability {}.{}".format(*torch.cuda.get_device_capability(device))
    return f"its kernels run on GPUs of compute capability 9.0, and the tensors are on {found}"


@functools.lru_cache(maxsize=64)
def hopper_kernels(device: torch.device) -> ModuleType | None:
    """The launchers of Hopper's kernels, on such a GPU."""
    if device.type != "cuda" or torch.version.hip is not None or torch.cuda.get_device_capability(device)[0] != 9:
        return None
    from .hopper import attention

    return attention
