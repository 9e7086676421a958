"""The layers that `accelerate` puts in place of PyG's: ours, with the PyG layer they stand for at hand.

Parameters, buffers, submodules and hooks are the PyG layer's own dictionaries, so optimizers, ``.to()``, ``state_dict``
and hook handles go on as before. What only PyG's layer can do — explanations, message hooks, attention weights,
decomposed layers — is left to it, with one warning.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from .. import nn
from ..graph import TCGraph
from ..interop.torch_sparse import is_sparse_tensor
from ..nn.options import Passing
from .parametrized import carry
from .verify import verify

MESSAGE_HOOKS = tuple(
    f"_{stage}_forward_{when}"
    for stage in ("propagate", "message", "aggregate", "message_and_aggregate", "edge_update")
    for when in ("pre_hooks", "hooks")
)


class Accelerated(torch.nn.Module):
    """What an accelerated layer adds to ours.

    Attributes:
        pyg: the PyG layer it stands for; not a submodule, so that ``state_dict`` has every entry once.
        options: attributes that this layer and PyG's both have; what they are here counts.
        weights_at: place of ``return_attention_weights`` among the positional arguments after ``edge_index``.
        unverified: the next call is compared with PyG's.
    """

    weights_at: int | None = None
    options: tuple[str, ...]
    pyg: Any
    passing: Passing
    edge_dim: int | None
    unverified: bool

    def adopt(self, conv: torch.nn.Module, shared: tuple[str, ...], options: tuple[str, ...]) -> None:
        """Share the dictionaries ``shared`` of ``conv`` and remember it and which ``options`` both have."""
        for name in shared:
            self.__dict__[name] = conv.__dict__[name]
        for name in (*conv._parameters, *conv._buffers, *conv._modules):
            self.__dict__.pop(name, None)  # what the constructor set to None
        self.__dict__["pyg"] = conv
        self.aggr, self.training = conv.aggr, conv.training
        self.options, self.unverified, self._warned = options, False, set()

    def hand_over(self) -> None:
        """Give PyG's layer this one's training mode and options, which may have been set since it took its place."""
        self.pyg.training = self.training
        for name in self.options:
            setattr(self.pyg, name, getattr(self, name))

    def always_left_to_pyg(self) -> str | None:
        """Why PyG's own forward runs at every call, whatever the inputs; ``None`` where it does not."""
        conv = self.pyg
        if conv._explain:
            return "an explainer is attached"
        if conv._decomposed_layers > 1:
            return f"decomposed_layers={conv._decomposed_layers}"
        if any(conv.__dict__.get(name) for name in MESSAGE_HOOKS):
            return "a message-passing hook is registered"
        return None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As of any module.

        Raises:
            TypeError: a tracer of ``torch.fx`` calls, such as PyG's ``to_hetero``, which looks for PyG's layers.
        """
        if any(isinstance(value, torch.fx.Proxy) for value in args):
            raise TypeError(
                f"torch.fx cannot trace the accelerated {type(self).__name__}: transform the model first "
                "(to_hetero, symbolic_trace), then call accelerate(model); restore(model) brings PyG's layers back"
            )
        return super().__call__(*args, **kwargs)

    def __prepare_scriptable__(self) -> Any:
        raise TypeError(
            f"TorchScript cannot compile the accelerated {type(self).__name__}: script restore(model), "
            "or use torch.compile or torch.export"
        )

    def forward(self, x: Any, edge_index: Any, *args: Any, **kwargs: Any) -> Any:
        """As our layer's; see :class:`Accelerated` for what goes to PyG's."""
        reason = self._left_to_pyg(x, edge_index, args, kwargs)
        if reason is not None:
            return self._fall_back(reason, x, edge_index, args, kwargs)
        if self.unverified and not torch.compiler.is_compiling():
            self.unverified = False
            verify(self, super().forward, self._call_pyg, (x, edge_index, *args), kwargs)
        return super().forward(x, edge_index, *args, **kwargs)

    def named_modules(
        self, memo: set[torch.nn.Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Any:
        """As usual, and last the PyG layer: explainers look for message-passing layers among a model's modules."""
        memo = set() if memo is None else memo
        known = self in memo
        yield from super().named_modules(memo, prefix, remove_duplicate)
        if remove_duplicate and not known and self.pyg not in memo:
            memo.add(self.pyg)
            yield f"{prefix}.pyg" if prefix else "pyg", self.pyg

    def _left_to_pyg(self, x: Any, edge_index: Any, args: tuple, kwargs: dict) -> str | None:
        always = self.always_left_to_pyg()
        if always is not None:
            return always
        if self.passing.flow == "target_to_source" and not isinstance(x, Tensor):
            return "a pair of features with flow='target_to_source'"
        if self.weights_at is not None:
            wanted = kwargs.get("return_attention_weights")
            if wanted is None and len(args) > self.weights_at:
                wanted = args[self.weights_at]
            if wanted is not None:
                return "return_attention_weights is set"
            if self.edge_dim is not None and is_sparse_tensor(edge_index):
                return "edge features in a SparseTensor"
        return None

    def _fall_back(self, reason: str, x: Any, edge_index: Any, args: tuple, kwargs: dict) -> Any:
        if not torch.compiler.is_compiling() and reason not in self._warned:
            self._warned.add(reason)
            warnings.warn(
                f"{type(self).__name__}: {reason}; this layer runs PyG's own forward, at its speed", stacklevel=3
            )
        return self._call_pyg(x, edge_index, *args, **kwargs)

    def _call_pyg(self, x: Any, edge_index: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(edge_index, TCGraph):
            if edge_index.weight is not None:
                raise TypeError(f"{type(self).__name__}: PyG's forward takes no weighted TCGraph, got {edge_index!r}")
            edge_index = edge_index.to_edge_index()  # rows are (source, target), whatever the flow
            if self.passing.flow == "target_to_source":
                edge_index = edge_index.flip(0)
        self.hand_over()
        if not torch.compiler.is_compiling():
            carry(self, self.pyg)
        return self.pyg.forward(x, edge_index, *args, **kwargs)


class AGNNConv(Accelerated, nn.AGNNConv):
    """Accelerated :class:`torch_tcgnn.nn.AGNNConv`."""


class GATConv(Accelerated, nn.GATConv):
    """Accelerated :class:`torch_tcgnn.nn.GATConv`."""

    weights_at = 2


class GATv2Conv(Accelerated, nn.GATv2Conv):
    """Accelerated :class:`torch_tcgnn.nn.GATv2Conv`."""

    weights_at = 1


class GCNConv(Accelerated, nn.GCNConv):
    """Accelerated :class:`torch_tcgnn.nn.GCNConv`."""


class GINConv(Accelerated, nn.GINConv):
    """Accelerated :class:`torch_tcgnn.nn.GINConv`."""


class GINEConv(Accelerated, nn.GINEConv):
    """Accelerated :class:`torch_tcgnn.nn.GINEConv`."""


class GraphConv(Accelerated, nn.GraphConv):
    """Accelerated :class:`torch_tcgnn.nn.GraphConv`."""


class SAGEConv(Accelerated, nn.SAGEConv):
    """Accelerated :class:`torch_tcgnn.nn.SAGEConv`."""


class SGConv(Accelerated, nn.SGConv):
    """Accelerated :class:`torch_tcgnn.nn.SGConv`."""


class TransformerConv(Accelerated, nn.TransformerConv):
    """Accelerated :class:`torch_tcgnn.nn.TransformerConv`."""

    weights_at = 1
