"""What ``--override.imports`` names: replacements in torchtitan's configuration. Imports torchtitan."""

from __future__ import annotations

from typing import Any

from torchtitan.config import derive, override
from torchtitan.distributed import activation_checkpoint as titan_ac
from torchtitan.models.common import attention as titan

from .flex_attention import FlexAttention
from .selective_ac import SelectiveAC


@override(target=titan.FlexAttention.Config, exact=True, description="attention by torch-flexattn")
def flex_attention(
    config: titan.FlexAttention.Config, *, kernel_options: dict[str, Any] | None = None, backend: str = "auto"
) -> FlexAttention.Config:
    """Every FlexAttention of the model by torch-flexattn.

    Args:
        config: what is replaced. Its ``kernel_options`` are of PyTorch's kernels and are left out.
        kernel_options: of torch-flexattn's kernels.
        backend: of ``torch_flexattn.flex_attention``.
    """
    return derive(config, FlexAttention.Config, kernel_options=kernel_options or {}, backend=backend)


@override(target=titan_ac.SelectiveAC.Config, exact=True, description="keeps the results of torch-flexattn")
def selective_ac(config: titan_ac.SelectiveAC.Config) -> SelectiveAC.Config:
    """Selective checkpointing that does not compute attention again."""
    return derive(config, SelectiveAC.Config)
