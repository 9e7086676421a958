"""Selective activation checkpointing that keeps the results of attention. Imports torchtitan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch_flexattn  # noqa: F401  registers the operator
from torchtitan.distributed import activation_checkpoint as titan


class SelectiveAC(titan.SelectiveAC):
    """torchtitan's policy, which knows PyTorch's attention, and torch-flexattn's."""

    @dataclass(kw_only=True, slots=True)
    class Config(titan.SelectiveAC.Config):
        pass

    def get_save_ops(self) -> set[Any]:
        """The operators whose results are kept."""
        return {*super().get_save_ops(), torch.ops.torch_flexattn.forward.default}
