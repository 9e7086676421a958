"""The linear map of PyG's layers: chosen initialisation, and an input size that the first input may decide."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.nn.functional import linear
from torch.nn.parameter import UninitializedParameter, is_lazy

Initializer = Literal["glorot", "kaiming_uniform"]


def glorot(weight: Tensor | None) -> None:
    """Uniform in ``±√(6 / (fan_in + fan_out))`` over the last two dimensions (Glorot & Bengio, 2010)."""
    if weight is not None:
        bound = math.sqrt(6.0 / (weight.shape[-2] + weight.shape[-1]))
        weight.data.uniform_(-bound, bound)


def reset(module: Any) -> None:
    """Call ``reset_parameters`` of a module, or of its children where it has none."""
    if hasattr(module, "reset_parameters"):
        module.reset_parameters()
    else:
        for child in module.children() if hasattr(module, "children") else ():
            reset(child)


class Linear(torch.nn.Module):
    """``x Wᵀ + b`` with the names and initialisation of PyG's ``Linear``.

    Args:
        in_channels: size of the input's last dimension, or -1: taken from the first input.
        out_channels: size of the output's last dimension.
        bias: learn ``b``, initialised uniformly in ``±1/√in_channels``.
        weight_initializer: ``"glorot"`` or ``"kaiming_uniform"`` (that of :class:`torch.nn.Linear`).

    Shapes:
        ``[..., in_channels]`` to ``[..., out_channels]``, floating point.

    Example:
        >>> import torch
        >>> Linear(-1, 3)(torch.ones(2, 5)).shape
        torch.Size([2, 3])
    """

    weight: Parameter | UninitializedParameter
    bias: Parameter | None

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        bias: bool = True,
        *,
        weight_initializer: Initializer = "kaiming_uniform",
    ) -> None:
        super().__init__()
        self.in_channels, self.out_channels = in_channels, out_channels
        self.weight_initializer = weight_initializer
        if in_channels > 0:
            self.weight = Parameter(torch.empty(out_channels, in_channels))
        else:
            self.weight = UninitializedParameter()
            self._await_input()
        self.register_parameter("bias", Parameter(torch.empty(out_channels)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new parameters; does nothing while the input size is unknown."""
        if self.in_channels <= 0:
            return
        bound = 1.0 / math.sqrt(self.in_channels)
        if self.weight_initializer == "glorot":
            glorot(self.weight)
        else:
            self.weight.data.uniform_(-bound, bound)
        if self.bias is not None:
            self.bias.data.uniform_(-bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the map."""
        return linear(x, self.weight, self.bias)

    def _await_input(self) -> None:
        self._hook = self.register_forward_pre_hook(_materialize)

    def _settle(self, in_channels: int) -> None:
        self.in_channels = in_channels
        self.weight.materialize((self.out_channels, in_channels))  # pyright: ignore[reportAttributeAccessIssue]
        self._hook.remove()
        del self._hook

    def _save_to_state_dict(self, destination: dict, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars or is_lazy(self.weight))

    def _load_from_state_dict(self, state_dict: dict, prefix: str, *args: Any, **kwargs: Any) -> None:
        weight = state_dict.get(prefix + "weight")
        if weight is not None and is_lazy(weight) and not is_lazy(self.weight):
            self.in_channels, self.weight = -1, UninitializedParameter()
            self._await_input()
        elif weight is not None and not is_lazy(weight) and is_lazy(self.weight):
            self._settle(weight.shape[-1])
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.out_channels}, bias={self.bias is not None}"


def _materialize(module: Linear, inputs: tuple[Tensor]) -> None:
    with torch.no_grad():
        module._settle(inputs[0].shape[-1])
        module.reset_parameters()
