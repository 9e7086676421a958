"""The module that takes the place of torchtitan's ``FlexAttention``. Imports torchtitan."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import spmd_types as spmd
from spmd_types.runtime import get_partition_spec
from torch import Tensor
from torch_flexattn import KernelOptions, UnsupportedError
from torchtitan.distributed.utils import get_spmd_backend, is_in_batch_invariant_mode
from torchtitan.models.common import attention as titan

from .inner_attention import InnerAttention

SIGNATURE = inspect.signature(titan.FlexAttention.forward)
TENSORS = tuple(SIGNATURE.parameters)[1:4]
"""Names of queries, keys and values. They say the layout, so they differ among versions; shardings go by them."""


class FlexAttention(InnerAttention, titan.FlexAttention):
    """torchtitan's ``FlexAttention``, computed by torch-flexattn.

    A subclass, and so is its ``Config``: torchtitan builds the masks of a model by the type of its attention.

    Args:
        config: ``block_size`` is that of torchtitan's masks, a multiple of 16; ``kernel_options`` and ``backend`` are
            those of torch-flexattn.

    Raises:
        InputError: options that no kernel of torch-flexattn takes.

    Reference:
        torchtitan, ``torchtitan.models.common.attention.FlexAttention``.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(titan.FlexAttention.Config):
        backend: str = "auto"

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        KernelOptions.of(config.kernel_options)
        self.backend = config.backend

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        named = [kwargs.pop(name) for name in TENSORS if name in kwargs]
        return super().forward(*args, *named, **kwargs)

    forward.__signature__ = SIGNATURE  # type: ignore[attr-defined]

    def attend(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
        if is_in_batch_invariant_mode():
            raise UnsupportedError(
                "torchtitan's batch-invariant mode: bits of a document depend on the others packed with it here, so "
                "leave torch-flexattn's override out"
            )
        with spmd.no_typecheck():
            out, lse = super().attend(q, k, v, **options)
        if get_spmd_backend() == "spmd_types" and spmd.is_type_checking():
            # Kernels have no types of their own: tokens and heads are laid out as those of the queries.
            kind, spec = spmd.get_local_type(q), get_partition_spec(q)
            spmd.assert_type(out, kind, spec)
            spmd.assert_type(lse, kind, None if spec is None else spmd.PartitionSpec(*spec[:-1]))
        return out, lse
