"""PyTorch Lightning: what attention does in a training run, packed documents as data, a picture of the mask.

The only file that imports lightning. Callbacks hear of calls by :func:`torch_flexattn.listening`, and only while they
measure; nothing is put on the model.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

try:
    from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
    from lightning.pytorch.utilities import rank_zero_only, rank_zero_warn
except ImportError as error:
    raise ImportError("torch_flexattn.lightning needs lightning: pip install 'torch-flexattn[lightning]'") from error

from .block_mask import BlockMask
from .data import PackedRows
from .errors import FlexAttentionError, InputError, KindError
from .factory_arguments import check_choice, check_count, check_number
from .flops import CallFigures
from .stats import ObservedCall, Stats, listening, stats
from .viz import save
from .viz.file import check_suffix

__all__ = [
    "AttentionMonitor",
    "MaskSnapshot",
    "PackedDataModule",
    "RecompileError",
    "RecompileGuard",
]

PEAK_TFLOPS = {
    "H200": 989.0, "H100 PCIe": 756.0, "H100 NVL": 835.0, "H100": 989.0, "GH200": 989.0, "B200": 2250.0, "A100": 312.0,
    "A10G": 125.0, "A10": 125.0, "A40": 149.7, "L40S": 362.0, "L4": 121.0, "RTX 4090": 165.2, "RTX 3090": 71.0,
}  # fmt: skip
"""Dense bfloat16 products with float32 sums, from the makers' data sheets, by a part of the device's name."""


class _Ear:
    """Hears of calls while it is open; closing it twice does nothing."""

    def __init__(self, hear: Callable[[ObservedCall], None]) -> None:
        self._hear = hear
        self._open: AbstractContextManager[None] | None = None

    def open(self) -> None:
        if self._open is None:
            self._open = listening(self._hear)
            self._open.__enter__()

    def close(self) -> None:
        if self._open is not None:
            self._open.__exit__(None, None, None)
            self._open = None


class AttentionMonitor(Callback):
    """Log what attention does in a training step: how much is visible, how fast it goes, what is made anew.

    Logged at each measured step: ``attn/visible_pairs`` of all calls, heads and batch entries; ``attn/sparsity``,
    percent of their blocks that are not computed; ``attn/tflops``, 10¹² operations of visible pairs, forward and
    backward, per second of the whole step; ``attn/mfu``, that by the device's peak: a lower bound of the model's
    utilisation, which counts other products too; ``attn/compiles``, programs recorded and kernel sources made since
    training began; ``attn/mask_build_ms`` of the step; ``attn/peak_mem_mb``, of the device's allocator (on a CPU, of
    the process) so far. ``attn/kernel`` goes as text to loggers that take some.

    Args:
        every_n_steps: measure each ``n``-th batch of an epoch, from the first; it waits for the device then.
        peak_tflops: of one device; ``"auto"``: looked up by its name, and no ``attn/mfu`` where it is not known.

    Raises:
        InputError: ``every_n_steps`` below 1, a peak that is not positive.
        KindError: a peak that is no number.

    Example:
        >>> from torch_flexattn.lightning import AttentionMonitor
        >>> AttentionMonitor(every_n_steps=10).every_n_steps
        10
    """

    def __init__(self, every_n_steps: int = 50, peak_tflops: float | Literal["auto"] = "auto") -> None:
        self.every_n_steps = check_count("every_n_steps", every_n_steps, 1)
        self.peak_tflops: float | Literal["auto"] = "auto"
        if peak_tflops != "auto":
            self.peak_tflops = check_number("peak_tflops", peak_tflops, positive=True)
        self._step: CallFigures | None = None
        self._ear = _Ear(self._hear)
        self._at_start = Stats()
        self._before = Stats()
        self._began = 0.0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin to count what is made anew."""
        self._at_start = stats()

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Begin to listen, if this step is measured."""
        if batch_idx % self.every_n_steps:
            return
        self._step, self._before = CallFigures(), stats()
        self._ear.open()
        if pl_module.device.type == "cuda":
            torch.cuda.synchronize(pl_module.device)
        self._began = time.perf_counter()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log the figures of this step, if it was measured."""
        step, self._step = self._step, None
        self._ear.close()
        if step is None:
            return
        device = pl_module.device
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds = time.perf_counter() - self._began
        peak_mb = _peak_memory_mb(device)
        if not step.calls:
            rank_zero_warn("AttentionMonitor heard of no call of flex_attention in a measured step")
            return
        now, figures = stats(), step.figures()
        tflops = figures["flops"] / seconds / 1e12
        logged = {
            "sparsity": figures["sparsity"],
            "visible_pairs": figures["visible_pairs"],
            "tflops": tflops,
            "compiles": float(now.compiles - self._at_start.compiles),
            "mask_build_ms": now.mask_build_ms - self._before.mask_build_ms,
        }
        if peak_mb is not None:
            logged["peak_mem_mb"] = peak_mb
        peak = self.peak_tflops if isinstance(self.peak_tflops, float) else _peak_tflops(device)
        if peak is not None:
            logged["mfu"] = tflops / peak
        pl_module.log_dict(
            {f"attn/{name}": value for name, value in logged.items()}, on_step=True, on_epoch=False, batch_size=1
        )
        _log_text(trainer, "attn/kernel", ", ".join(sorted({call.kernel for call in step.calls})))

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Listen no more."""
        self._ear.close()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Listen no more: after an exception the step has no end."""
        self._ear.close()
        self._step = None

    def _hear(self, call: ObservedCall) -> None:
        if self._step is not None:
            self._step.calls.append(call)


def _peak_tflops(device: torch.device) -> float | None:
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next((peak for part, peak in PEAK_TFLOPS.items() if part in name), None)


def _peak_memory_mb(device: torch.device) -> float | None:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    if sys.platform == "win32":
        return None
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10


@rank_zero_only
def _log_text(trainer: Trainer, name: str, text: str) -> None:
    """TensorBoard's way of text; the loggers of tables and of Weights & Biases take it as any value."""
    for logger in trainer.loggers:
        write = getattr(getattr(logger, "experiment", None), "add_text", None)
        if write is not None:
            write(name, text, trainer.global_step)
        elif type(logger).__name__ in ("CSVLogger", "WandbLogger"):
            logger.log_metrics({name: text}, step=trainer.global_step)  # type: ignore[dict-item]


class RecompileError(FlexAttentionError, RuntimeError):
    """More was made anew in a training run than :class:`RecompileGuard` allows."""


class RecompileGuard(Callback):
    """Say when a training run goes on making kernels: a mod that is another one at every step costs seconds each time.

    Counted are functions that are recorded and sources of kernels that are made, from the start of training.

    Args:
        max_compiles: as many are allowed.
        action: ``"warn"``, once a run, or ``"raise"``.

    Raises:
        InputError: ``max_compiles`` below 0, another ``action``.
        RecompileError: in training, with ``action="raise"``.

    Example:
        >>> from torch_flexattn.lightning import RecompileGuard
        >>> RecompileGuard(max_compiles=8, action="raise").max_compiles
        8
    """

    def __init__(self, max_compiles: int, action: Literal["warn", "raise"] = "warn") -> None:
        self.max_compiles = check_count("max_compiles", max_compiles)
        check_choice("action", action, ("warn", "raise"))
        self.action = action
        self._at_start = Stats()
        self._told: list[int] = []

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin to count."""
        self._at_start = stats()
        self._told.clear()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Warn or raise where there were too many."""
        now = stats()
        compiles = now.compiles - self._at_start.compiles
        if compiles <= self.max_compiles or self._told:
            return
        said = (
            f"{compiles} compiles since training began, and max_compiles is {self.max_compiles}: "
            f"{now.programs - self._at_start.programs} functions were recorded and "
            f"{now.kernels_loaded - self._at_start.kernels_loaded} kernels loaded (step {trainer.global_step}); make "
            "mods once, from functions that do not change, and let numbers and tensors change instead"
        )
        if self.action == "raise":
            raise RecompileError(said)
        self._told.append(compiles)
        rank_zero_warn(f"RecompileGuard: {said}")


class MaskSnapshot(Callback):
    """Write a picture of the mask of the first call that has one, in the first step of training.

    Args:
        path: of the file, which ends in ``.png``, ``.svg`` or ``.txt``; its folder is made. Rank 0 writes it.

    Raises:
        InputError: another ending.

    Example:
        >>> from torch_flexattn.lightning import MaskSnapshot
        >>> MaskSnapshot("mask.svg").path.name
        'mask.svg'
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        check_suffix("path", self.path)
        self._mask: BlockMask | None = None
        self._ear = _Ear(self._hear)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Listen in the first step of a run."""
        if batch_idx == 0 and trainer.current_epoch == 0 and trainer.is_global_zero:
            self._ear.open()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Write the picture, if there was a mask."""
        self._ear.close()
        mask, self._mask = self._mask, None
        if mask is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            save(self.path, mask)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Listen no more."""
        self._ear.close()
        self._mask = None

    def _hear(self, call: ObservedCall) -> None:
        if self._mask is None and isinstance(call.mask, BlockMask):
            self._mask = call.mask


class PackedDataModule(LightningDataModule):
    """Documents packed into rows; a batch is one :class:`~torch_flexattn.data.PackedRow`, bounds are new at every step.

    Args:
        documents: for training: int64 ``[n]`` each, of any length.
        row_length: tokens of a row.
        val_documents: for validation, likewise.
        test_documents: for testing, likewise.
        how: ``"cut"``: rows are full and cut documents at their ends; ``"whole"``: documents stay whole, rows may be
            shorter (see :func:`torch_flexattn.data.pack_documents`).
        shuffle: put the training documents, and rows of whole ones, in another order before each epoch.
        seed: of the order; the epoch is added to it, so a resumed run goes on with the same rows.

    Raises:
        InputError: no documents, ``row_length`` below 1, another ``how``.
        KindError: documents that are no integer tensors ``[n]``.

    Example:
        >>> import torch
        >>> from torch_flexattn.lightning import PackedDataModule
        >>> rows = PackedDataModule([torch.arange(5), torch.arange(2)], row_length=4, shuffle=False)
        >>> [row.cu_seqlens.tolist() for row in rows.train_dataloader()]
        [[0, 4], [0, 1, 3]]
    """

    def __init__(
        self,
        documents: Sequence[Tensor],
        row_length: int,
        *,
        val_documents: Sequence[Tensor] | None = None,
        test_documents: Sequence[Tensor] | None = None,
        how: Literal["cut", "whole"] = "cut",
        shuffle: bool = True,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.row_length = check_count("row_length", row_length, 1)
        check_choice("how", how, ("cut", "whole"))
        self.documents = _checked("documents", documents)
        self.val_documents = None if val_documents is None else _checked("val_documents", val_documents)
        self.test_documents = None if test_documents is None else _checked("test_documents", test_documents)
        self.how: Literal["cut", "whole"] = how
        self.shuffle, self.seed = shuffle, check_count("seed", seed)
        if self.val_documents is not None:  # Lightning validates what has a loader
            self.val_dataloader = self._val_rows
        if self.test_documents is not None:
            self.test_dataloader = self._test_rows

    def train_dataloader(self) -> Any:
        """Rows of the training documents, in a new order each epoch."""
        return self._rows(self.documents, self.seed if self.shuffle else None)

    def _val_rows(self) -> Any:
        return self._rows(self.val_documents or [], None)

    def _test_rows(self) -> Any:
        return self._rows(self.test_documents or [], None)

    def _rows(self, documents: list[Tensor], seed: int | None) -> PackedRows:
        return PackedRows(documents, self.row_length, how=self.how, seed=seed, place=self._place)

    def _place(self) -> tuple[int, int, int]:
        trainer = self.trainer
        return (0, 0, 1) if trainer is None else (trainer.current_epoch, trainer.global_rank, trainer.world_size)


def _checked(name: str, documents: Sequence[Tensor]) -> list[Tensor]:
    found = list(documents)
    for number, document in enumerate(found):
        if not isinstance(document, Tensor) or document.dim() != 1 or document.is_floating_point():
            got = f"{document.dtype} {tuple(document.shape)}" if isinstance(document, Tensor) else repr(document)[:60]
            raise KindError(f"{name} must be integer tensors [n], got {got} as number {number}")
    if not sum(document.shape[0] for document in found):
        raise InputError(f"{name} must hold tokens, got {len(found)} documents without any")
    return found
