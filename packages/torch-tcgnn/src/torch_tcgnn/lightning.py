"""PyTorch Lightning on translated graphs: two callbacks, a node classifier, and one graph as a data module.

The only file that imports lightning. One full graph is one batch, and one batch is one epoch, as the papers of the
field train (Kipf & Welling, ICLR 2017, section 3).
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

try:
    from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
    from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
    from torchmetrics.classification import MulticlassAccuracy
except ImportError as error:
    raise ImportError(
        "torch_tcgnn.lightning needs lightning and torchmetrics: pip install 'torch-tcgnn[lightning]'"
    ) from error

from . import cache
from .accelerate import accelerate, report, restore
from .data import GraphData
from .data.locate import Root
from .fit_arguments import as_graph_data, check_classifier, check_translation
from .functional.arguments import PRECISIONS, Precision, check_choice
from .graph import Path, TCGraph
from .graph_arguments import check_count
from .interop import as_graph

__all__ = ["FullGraph", "GraphStatsMonitor", "NodeBatch", "NodeClassifier", "TCGNNAccelerator"]


class TCGNNAccelerator(Callback):
    """Run a PyG model on this package's layers for as long as the Trainer works on it.

    Layers are exchanged in ``setup``, before the optimizers are made, and put back in ``teardown`` or after an
    exception. Parameters stay the same objects under the same names, so checkpoints load with and without this
    callback, and into the plain PyG model.

    Args:
        precision: see :func:`torch_tcgnn.spmm`.
        verify: compare each exchanged layer with PyG's on its first batch.

    Raises:
        ValueError: an unknown ``precision``.
        AccelerateError: on the first batch, where ``verify`` finds a layer that deviates.

    Example:
        >>> from torch_tcgnn.lightning import TCGNNAccelerator
        >>> TCGNNAccelerator(precision="tf32").precision
        'tf32'
    """

    def __init__(self, *, precision: Precision | None = None, verify: bool = True) -> None:
        if precision is not None:
            check_choice("precision", precision, PRECISIONS)
        self.precision: Precision | None = precision
        self.verify = verify
        self._accelerated: LightningModule | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Exchange the layers; does nothing where that is done."""
        if self._accelerated is pl_module:
            return
        self._restore()
        self._accelerated = pl_module
        accelerate(pl_module, precision=self.precision, verify=self.verify)
        rank_zero_info(f"TCGNNAccelerator:\n{report(pl_module)}")

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Put PyG's layers back."""
        self._restore()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Put PyG's layers back: after an exception there is no ``teardown``."""
        self._restore()

    def _restore(self) -> None:
        if self._accelerated is not None:
            restore(self._accelerated)
            self._accelerated = None


class GraphStatsMonitor(Callback):
    """Log what the graphs of a training run look like to the kernels, as means over the measured batches of an epoch.

    Logged: ``graph/reuse`` (entries served by one gathered row, ``nnz / v8``), ``graph/tc_fraction`` (share of the
    entries in windows that suit tensor cores), ``graph/blocks``, ``graph/density``, ``graph/build_ms`` (translating the
    batch's graph with its blocks, timed here), ``graph/bytes`` of it; of the layers' shared cache
    ``graph/cache_bytes``, and ``graph/cache_hits`` and ``graph/cache_misses`` of the training batches. A ``TCGraph`` in
    the batch keeps what layers derive from it; then the cache stays idle.

    Args:
        every_n_batches: measure each ``n``-th batch of an epoch; a graph that stays the same object is measured once.

    Raises:
        ValueError: ``every_n_batches`` below 1.

    Example:
        >>> from torch_tcgnn.lightning import GraphStatsMonitor
        >>> GraphStatsMonitor(every_n_batches=10).every_n_batches
        10
    """

    def __init__(self, *, every_n_batches: int = 1) -> None:
        check_count("every_n_batches", every_n_batches, least=1)
        self.every_n_batches = every_n_batches
        self._measured: weakref.ref | None = None
        self._figures: dict[str, float] = {}
        self._before = cache.info()

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin to count look-ups."""
        self._before = cache.info()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Measure the graph of this batch, and count look-ups since the last one."""
        now, before = cache.info(), self._before
        self._before = now
        counts = {"hits": float(now.hits - before.hits), "misses": float(now.misses - before.misses)}
        pl_module.log_dict(
            {f"graph/cache_{name}": max(count, 0.0) for name, count in counts.items()},
            on_step=False, on_epoch=True, reduce_fx="sum", batch_size=1,
        )  # fmt: skip
        if batch_idx % self.every_n_batches:
            return
        figures = self._measure(batch) | {"graph/cache_bytes": float(now.num_bytes)}
        pl_module.log_dict(figures, on_step=False, on_epoch=True, batch_size=1)

    def _measure(self, batch: Any) -> dict[str, float]:
        adj = _graph_of(batch)
        if adj is None:
            kind = type(batch).__name__
            rank_zero_warn(f"GraphStatsMonitor found no graph, edge_index or adj_t in a batch of type {kind}")
            return {}
        if self._measured is not None and self._measured() is adj:
            return self._figures
        with torch.no_grad():
            graph, build_ms = _timed_translation(adj, getattr(batch, "num_nodes", None))
        stats = graph.stats
        self._measured = weakref.ref(adj)
        self._figures = {
            "graph/reuse": stats.reuse,
            "graph/tc_fraction": stats.tc_fraction,
            "graph/blocks": float(stats.blocks),
            "graph/density": stats.density,
            "graph/build_ms": build_ms,
            "graph/bytes": float(cache.num_bytes(graph)),
        }
        return self._figures


def _graph_of(batch: Any) -> Any:
    found = (getattr(batch, name, None) for name in ("graph", "adj_t", "edge_index"))
    return next((adj for adj in found if adj is not None), None)


def _timed_translation(adj: Any, num_nodes: int | tuple[int, int] | None) -> tuple[TCGraph, float]:
    """A fresh translation of ``adj`` with its blocks, and the milliseconds it took."""
    reorder: str = "none"
    path: Path = "auto"
    if isinstance(adj, TCGraph):
        reorder, path, num_nodes = adj.reorder, adj.path, (adj.num_cols, adj.num_rows)
        adj = adj.to_edge_index()
    device = getattr(adj, "device", None)
    on_gpu = isinstance(device, torch.device) and device.type == "cuda"
    if on_gpu:
        torch.cuda.synchronize(device)
    began = time.perf_counter()
    graph = as_graph(adj, num_nodes, reorder=reorder, path=path)
    _ = graph.blocks
    if on_gpu:
        torch.cuda.synchronize(device)
    return graph, 1e3 * (time.perf_counter() - began)


@dataclass(frozen=True, eq=False, kw_only=True)
class NodeBatch:
    """A graph with what :class:`NodeClassifier` needs of it.

    Attributes:
        x: ``[N, F]`` features.
        graph: a ``TCGraph``, or ``[2, E]`` int64 edges.
        y: ``[N]`` int64 classes.
        train_mask: ``[N]`` bool, or ``None``; so are ``val_mask`` and ``test_mask``.

    Example:
        >>> import torch
        >>> from torch_tcgnn.lightning import NodeBatch
        >>> NodeBatch(x=torch.ones(2, 3), graph=torch.tensor([[0], [1]]), y=torch.tensor([0, 1])).num_nodes
        2
    """

    x: Tensor
    graph: TCGraph | Tensor
    y: Tensor
    train_mask: Tensor | None = None
    val_mask: Tensor | None = None
    test_mask: Tensor | None = None

    @property
    def num_nodes(self) -> int:
        """``N``."""
        return self.x.shape[0]

    def to(self, device: torch.device | str) -> NodeBatch:
        """The same batch with every tensor, and the graph, on ``device``."""
        parts = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{name: part.to(device) for name, part in parts.items() if part is not None})


class NodeClassifier(LightningModule):
    """Train any ``model(x, graph) -> logits`` to tell the classes of nodes, full batch, with Adam.

    A batch is a :class:`NodeBatch`, or anything with ``x``, ``y``, the masks, and ``graph`` or ``edge_index`` (PyG's
    ``Data``). The loss is the cross entropy over the masked nodes. Logged: ``{train,val,test}_{loss,accuracy}``.

    Args:
        model: maps ``x`` ``[N, F]`` and the graph to ``[N, num_classes]`` logits.
        num_classes: at least 2.
        lr: learning rate.
        weight_decay: L2 penalty, as Adam's.
        decayed: submodules of ``model`` that it applies to (``("conv1",)`` in GCN); default: all of it.

    Raises:
        TypeError: ``model`` is no module, or a number none.
        ValueError: an option out of range; ``decayed`` names no parameter; a mask that selects no node.

    Example:
        >>> import torch, torch_tcgnn as tcg
        >>> from torch_tcgnn.lightning import NodeClassifier
        >>> NodeClassifier(tcg.nn.GCNConv(4, 3), num_classes=3, lr=0.01).hparams.lr
        0.01

    Reference:
        Kipf & Welling, Semi-supervised classification with graph convolutional networks, ICLR 2017.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        *,
        num_classes: int,
        lr: float = 0.01,
        weight_decay: float = 5e-4,
        decayed: Sequence[str] | None = None,
    ) -> None:
        super().__init__()
        check_classifier(model, num_classes, lr, weight_decay)
        decayed = None if decayed is None else list(decayed)
        self.save_hyperparameters(ignore=["model"])
        self.model = model
        self.lr, self.weight_decay, self.decayed = lr, weight_decay, decayed
        names = [name for name, _ in model.named_parameters()]
        for part in decayed or ():
            if not any(_belongs(name, part) for name in names):
                raise ValueError(f"decayed names {part!r}, but the model has the parameters {', '.join(names)}")
        self.train_accuracy, self.val_accuracy, self.test_accuracy = (
            MulticlassAccuracy(num_classes, average="micro", validate_args=False) for _ in range(3)
        )

    def forward(self, x: Tensor, graph: Any) -> Tensor:
        """``[N, num_classes]`` logits."""
        return self.model(x, graph)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Loss over the training nodes."""
        return self._step(batch, "train", batch.train_mask, self.train_accuracy)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Loss and accuracy over the validation nodes."""
        self._step(batch, "val", batch.val_mask, self.val_accuracy)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        """Loss and accuracy over the test nodes."""
        self._step(batch, "test", batch.test_mask, self.test_accuracy)

    def predict_step(self, batch: Any, batch_idx: int) -> Tensor:
        """``[N, num_classes]`` logits of all nodes."""
        return self(batch.x, _graph_of(batch))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam, in two groups where only some submodules decay."""
        decayed, free = [], []
        for name, parameter in self.model.named_parameters():
            decays = self.decayed is None or any(_belongs(name, part) for part in self.decayed)
            (decayed if decays else free).append(parameter)
        groups = [(decayed, self.weight_decay), (free, 0.0)]
        return torch.optim.Adam([{"params": p, "weight_decay": decay} for p, decay in groups if p], lr=self.lr)

    def _step(self, batch: Any, stage: str, mask: Tensor | None, accuracy: MulticlassAccuracy) -> Tensor:
        logits, y = self(batch.x, _graph_of(batch)), batch.y
        if mask is not None:
            logits, y = logits[mask], y[mask]
        count = y.shape[0]
        if count == 0:
            raise ValueError(f"{stage}_mask selects no node of the {batch.x.shape[0]} in the batch")
        loss = cross_entropy(logits, y)
        accuracy.update(logits.detach(), y)
        for name, value in ((f"{stage}_loss", loss), (f"{stage}_accuracy", accuracy)):
            self.log(name, value, on_step=False, on_epoch=True, batch_size=count, prog_bar=stage != "test")
        return loss


def _belongs(name: str, part: str) -> bool:
    return name == part or name.startswith(f"{part}.")


_PARTS = ("x", "y", "train_mask", "val_mask", "test_mask")


class FullGraph(LightningDataModule):
    """One graph as the data of every stage: one batch an epoch, moved to the device and translated once.

    Args:
        data: the graph, or a name that :func:`torch_tcgnn.data.load` knows.
        root: folder of the files of a named graph.
        translate: hand the model a ``TCGraph``; ``False``: the ``edge_index``, for models of PyG.
        reorder: see :meth:`TCGraph.from_edge_index`.
        path: likewise.

    Raises:
        TypeError: ``data`` is neither a graph nor a name.
        ValueError: an unknown choice; no ``x``, ``y`` or mask; edge weights, which ``translate=False`` would lose.
        FileNotFoundError: the files of a named graph are not there.

    Example:
        >>> from torch_tcgnn.lightning import FullGraph
        >>> digits = FullGraph("digits")
        >>> digits.graph_data, digits.graph_data.num_classes
        (GraphData(digits: 1797 nodes, 19858 edges), 10)
    """

    def __init__(
        self,
        data: GraphData | str,
        *,
        root: Root = None,
        translate: bool = True,
        reorder: str = "none",
        path: Path = "auto",
    ) -> None:
        super().__init__()
        check_translation(reorder, path)
        self.graph_data = as_graph_data(data, root)
        self.translate, self.reorder = translate, reorder
        self.path: Path = path
        self._parts: dict[str, Any] = {name: getattr(self.graph_data, name) for name in _PARTS}
        missing = [name for name, part in self._parts.items() if part is None]
        if missing:
            raise ValueError(f"data must have x, y and three masks, but {self.graph_data!r} lacks {', '.join(missing)}")
        if not translate and self.graph_data.edge_weight is not None:
            raise ValueError(f"translate=False hands on edge_index alone, but {self.graph_data!r} has edge weights")
        self._resident: NodeBatch | None = None

    def train_dataloader(self) -> Iterable[GraphData]:
        """One batch: the graph."""
        return _Once(self.graph_data)

    val_dataloader = test_dataloader = predict_dataloader = train_dataloader

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """The graph on ``device``, from the second time on without a copy."""
        if batch is not self.graph_data:
            return super().transfer_batch_to_device(batch, device, dataloader_idx)
        if self._resident is None or self._resident.x.device != device:
            self._resident = self._batch(device)
        return self._resident

    def _batch(self, device: torch.device) -> NodeBatch:
        data = self.graph_data
        graph: TCGraph | Tensor = data.edge_index
        if self.translate:
            graph = TCGraph.from_edge_index(
                data.edge_index, data.num_nodes, data.edge_weight, reorder=self.reorder, path=self.path
            )
        return NodeBatch(graph=graph, **self._parts).to(device)


class _Once:
    """A loader of one graph: no worker, no copy, no collation."""

    def __init__(self, data: GraphData) -> None:
        self.data = data

    def __iter__(self) -> Iterator[GraphData]:
        yield self.data

    def __len__(self) -> int:
        return 1
