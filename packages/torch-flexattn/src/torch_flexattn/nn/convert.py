"""From a model of PyTorch's layers to one of these."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from ..errors import KindError
from .multihead import FlexMultiheadAttention


@dataclass(frozen=True)
class Converted:
    """What :func:`convert_mha_` did.

    Attributes:
        modules: names of the modules that were exchanged; ``""`` is the model itself.
        left: names of those that were not, each with the reason.

    Example:
        >>> Converted(("layer.self_attn",), {}).modules
        ('layer.self_attn',)
    """

    modules: tuple[str, ...]
    left: dict[str, str]


def convert_mha_(model: nn.Module) -> Converted:
    """Make every ``nn.MultiheadAttention`` of a model a :class:`FlexMultiheadAttention`, in place.

    The modules stay the same objects, with their parameters, hooks and options; only their class changes. So
    optimizers, checkpoints and references go on as they are. ``nn.TransformerEncoder`` no longer makes nested tensors.

    Args:
        model: any module.

    Returns:
        What was exchanged, and what was not and why: classes derived from PyTorch's, with code of their own.

    Raises:
        KindError: no module.

    Example:
        >>> from torch import nn
        >>> from torch_flexattn.nn import convert_mha_
        >>> convert_mha_(nn.TransformerEncoderLayer(16, 4)).modules
        ('self_attn',)

    Reference:
        PyTorch, torch.nn.MultiheadAttention.
    """
    if not isinstance(model, nn.Module):
        raise KindError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    found, left = [], {}
    for name, module in model.named_modules():
        if isinstance(module, nn.TransformerEncoder):
            module.use_nested_tensor = False
        if type(module) is nn.MultiheadAttention:
            module.__class__ = FlexMultiheadAttention
            module.become_flexible()  # type: ignore[operator]
            found.append(name)
        elif isinstance(module, nn.MultiheadAttention) and not isinstance(module, FlexMultiheadAttention):
            kind = type(module)
            left[name] = f"it is a {kind.__module__}.{kind.__qualname__}, which may compute something else"
    return Converted(tuple(found), left)
