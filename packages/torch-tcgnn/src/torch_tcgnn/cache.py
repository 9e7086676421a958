"""Graphs translated once: a cache that remembers what it built for an ``edge_index`` as long as that object lives.

An entry is found by the object itself (a weak reference, compared by identity) together with its version counter,
shape, dtype, device, address and the caller's options. An address that a later tensor happens to reuse is therefore
never a hit, and an in-place edit of ``edge_index``, or other ``.data``, is a miss.

Writes that do not raise a tensor's version go unseen: through NumPy, in place through ``.data``, and by collectives of
``torch.distributed`` such as ``broadcast`` and ``all_reduce``. After one, call
``torch.autograd.graph.increment_version(tensor)``, pass a clone, or call ``clear``.

``clear``, ``info``, ``disabled`` and ``get`` of this module act on the one cache that all layers share, ``default``.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import Parameter

from .graph import TCGraph
from .graph_arguments import check_count, check_sizes
from .interop import as_graph
from .interop.torch_sparse import is_sparse_tensor
from .settle import check_not_captured, settle

T = TypeVar("T")


@dataclass(frozen=True)
class CacheInfo:
    """Counts of a cache since it was made or cleared.

    Attributes:
        graphs: entries held.
        num_bytes: tensor bytes held by them, parts derived since (transpose, blocks) included.
        hits: look-ups answered from the cache.
        misses: look-ups that built.
        evictions: entries dropped for room.
        max_graphs: limit of ``graphs``.
        max_bytes: limit of ``num_bytes``, or ``None``.

    Example:
        >>> import torch_tcgnn as tcg
        >>> tcg.TCGraphCache(max_graphs=2).info().max_graphs
        2
    """

    graphs: int
    num_bytes: int
    hits: int
    misses: int
    evictions: int
    max_graphs: int
    max_bytes: int | None


@dataclass(frozen=True)
class _Entry:
    refs: tuple[weakref.ref, ...]
    prints: tuple[tuple, ...]
    value: Any


class TCGraphCache:
    """Least-recently-used cache of translated graphs; safe to share between threads.

    Args:
        max_graphs: most entries held.
        max_bytes: most tensor bytes held; a larger graph is built anew at every call.

    Raises:
        TypeError: a limit that is no integer.
        ValueError: a limit below 1.

    Example:
        >>> import torch, torch_tcgnn as tcg
        >>> cache = tcg.TCGraphCache(max_graphs=4)
        >>> edge_index = torch.tensor([[0, 1], [1, 0]])
        >>> g = cache.graph(edge_index, 2)
        >>> cache.graph(edge_index, 2) is g
        True
        >>> edge_index[0, 0] = 1  # an in-place edit
        >>> cache.graph(edge_index, 2) is g
        False
    """

    def __init__(self, max_graphs: int = 16, max_bytes: int | None = None) -> None:
        check_count("max_graphs", max_graphs, least=1)
        if max_bytes is not None:
            check_count("max_bytes", max_bytes, least=1)
        self.max_graphs, self.max_bytes = max_graphs, max_bytes
        self._entries: OrderedDict[tuple, _Entry] = OrderedDict()
        self._lock = threading.Lock()
        self._dead: deque[tuple] = deque()
        self._off: ContextVar[bool] = ContextVar("torch_tcgnn_cache_off", default=False)
        self._hits = self._misses = self._evictions = 0

    def graph(
        self,
        adj: Any,
        num_nodes: int | tuple[int, int] | None = None,
        weight: Tensor | None = None,
        **options: Any,
    ) -> TCGraph:
        """:func:`torch_tcgnn.as_graph` of ``adj`` and ``weight``, at most once; ``options`` are that function's."""

        if num_nodes is not None:
            check_sizes("num_nodes", num_nodes if isinstance(num_nodes, tuple) else (num_nodes, num_nodes))

        def build() -> TCGraph:
            held = weight if weight is None or weight.requires_grad else weight.clone()  # lets the caller's go
            return as_graph(adj, num_nodes, held, **options)

        key = ("graph", num_nodes, *sorted(options.items()))
        return self.get((adj,) if weight is None else (adj, weight), key, build)

    def get(self, objects: tuple[Any, ...], options: Hashable, build: Callable[[], T]) -> T:
        """The value ``build()`` gives for ``objects`` under ``options``, from memory where possible.

        Args:
            objects: what the value is built from: tensors, ``SparseTensor`` or ``TCGraph``. Others, tensors that
                require a gradient (fused optimizers edit them uncounted) and inference tensors are not remembered.
            options: everything else that the value depends on.
            build: makes the value; runs outside the lock, so two threads may both build, and both get the first result.
        """
        prints = None if torch.compiler.is_compiling() or self._off.get() else _fingerprints(objects)
        if prints is None:
            return build()
        key = (options, *map(id, objects))
        with self._lock:
            self._bury()
            entry = self._entries.get(key)
            if entry is not None and self._matches(entry, objects, prints):
                self._entries.move_to_end(key)
                self._hits += 1
                return entry.value
            self._misses += 1
        device = _device(objects)
        check_not_captured(device)
        with torch.inference_mode(False), torch.no_grad():
            value = build()
        settle(device)  # a graph from the cache may be used on any stream
        return self._store(key, objects, prints, value)

    def clear(self) -> None:
        """Forget every graph and every count."""
        with self._lock:
            self._entries.clear()
            self._dead.clear()
            self._hits = self._misses = self._evictions = 0

    def info(self) -> CacheInfo:
        """Sizes and counts."""
        with self._lock:
            self._bury()
            held = sum(num_bytes(e.value) for e in self._entries.values())
            return CacheInfo(
                len(self._entries), held, self._hits, self._misses, self._evictions, self.max_graphs, self.max_bytes
            )

    @contextmanager
    def disabled(self) -> Iterator[None]:
        """Neither look up nor remember inside this block, in this thread."""
        token = self._off.set(True)
        try:
            yield
        finally:
            self._off.reset(token)

    @staticmethod
    def _matches(entry: _Entry, objects: tuple[Any, ...], prints: tuple[tuple, ...]) -> bool:
        return all(ref() is obj for ref, obj in zip(entry.refs, objects)) and entry.prints == prints

    def _store(self, key: tuple, objects: tuple[Any, ...], prints: tuple[tuple, ...], value: T) -> T:
        size = num_bytes(value) if self.max_bytes is not None else 0
        if self.max_bytes is not None and size > self.max_bytes:
            return value
        refs = tuple(weakref.ref(obj, lambda _, key=key: self._died(key)) for obj in objects)
        with self._lock:
            self._bury()
            other = self._entries.get(key)
            if other is not None and self._matches(other, objects, prints):
                return other.value
            self._entries[key] = _Entry(refs, prints, value)
            self._entries.move_to_end(key)
            while len(self._entries) > self.max_graphs or self._too_big():
                self._entries.popitem(last=False)
                self._evictions += 1
        return value

    def _too_big(self) -> bool:
        if self.max_bytes is None or len(self._entries) < 2:
            return False
        return sum(num_bytes(e.value) for e in self._entries.values()) > self.max_bytes

    def _died(self, key: tuple) -> None:
        """An object of ``key`` was freed, perhaps while this very thread holds the lock: then it is buried later."""
        self._dead.append(key)
        if self._lock.acquire(blocking=False):
            try:
                self._bury()
            finally:
                self._lock.release()

    def _bury(self) -> None:
        while self._dead:
            key = self._dead.popleft()
            entry = self._entries.get(key)
            if entry is not None and any(ref() is None for ref in entry.refs):
                del self._entries[key]


def _fingerprints(objects: tuple[Any, ...]) -> tuple[tuple, ...] | None:
    """What must be unchanged for an entry to hold, or ``None`` where an object cannot be remembered."""
    prints = []
    for obj in objects:
        if isinstance(obj, Tensor):
            if obj.is_inference() or obj.requires_grad:
                return None
            inner = getattr(obj, "_data", None) if type(obj) is not Tensor else None
            version = (obj._version, inner._version) if isinstance(inner, Tensor) else obj._version
            address = obj.data_ptr() if type(obj) in (Tensor, Parameter) and obj.layout is torch.strided else None
            prints.append((version, obj.shape, obj.dtype, obj.device, address))
        elif isinstance(obj, TCGraph):
            weight = obj.weight
            if weight is not None and (weight.is_inference() or weight.requires_grad):
                return None
            prints.append(() if weight is None else (weight._version,))
        elif is_sparse_tensor(obj):
            parts = [t for t in obj.coo() if t is not None]
            if any(t.is_inference() or t.requires_grad for t in parts):
                return None
            prints.append(tuple((t._version, t.shape, t.dtype, t.device, t.data_ptr()) for t in parts))
        else:
            return None
    return tuple(prints)


def _device(objects: tuple[Any, ...]) -> torch.device:
    """Where ``objects`` lie."""
    if not objects:
        return torch.device("cpu")
    return objects[0].device() if is_sparse_tensor(objects[0]) else objects[0].device


def num_bytes(value: Any) -> int:
    """Bytes of the distinct tensor storages inside dataclasses, dictionaries, lists and tuples.

    Example:
        >>> x = torch.zeros(3)
        >>> num_bytes([x, {"again": x}])
        12
    """
    storages: dict[int, int] = {}
    seen: set[int] = set()
    todo = [value]
    while todo:
        item = todo.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, Tensor):
            if item.layout == torch.strided:
                storages[item.untyped_storage().data_ptr()] = item.untyped_storage().nbytes()
        elif is_dataclass(item) and not isinstance(item, type):
            todo += [getattr(item, f.name) for f in fields(item)]
        elif isinstance(item, dict):
            todo += list(item.values())
        elif isinstance(item, (list, tuple)):
            todo += list(item)
    return sum(storages.values())


default = TCGraphCache()
"""The cache that all layers share."""


def get(objects: tuple[Any, ...], options: Hashable, build: Callable[[], T]) -> T:
    """:meth:`TCGraphCache.get` of the shared cache.

    Example:
        >>> edge_index = torch.tensor([[0], [1]])
        >>> get((edge_index,), "edges", lambda: edge_index.shape[1])
        1
    """
    return default.get(objects, options, build)


def clear() -> None:
    """Forget every graph of the shared cache.

    Example:
        >>> clear()
        >>> info().graphs
        0
    """
    default.clear()


def info() -> CacheInfo:
    """Sizes and counts of the shared cache.

    Example:
        >>> info().max_graphs
        16
    """
    return default.info()


def disabled() -> Any:
    """Context in which layers neither look up nor remember graphs, in this thread; for loops over sampled subgraphs.

    Example:
        >>> edge_index = torch.tensor([[0], [1]])
        >>> with disabled():
        ...     default.graph(edge_index, 2) is default.graph(edge_index, 2)
        False
    """
    return default.disabled()
