"""Callbacks of torch-flexattn, each with a tiny training run, for the conformance suite; see `conformance_cases.py`."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch

from tests.conformance.cases import CallbackCase


def callbacks() -> list[CallbackCase]:
    """A layer of causal attention inside documents, on packed rows."""
    import torch_flexattn.lightning as tfl
    from lightning.pytorch import LightningModule
    from torch_flexattn import masks
    from torch_flexattn.nn import GroupedQueryAttention

    class Model(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(1)
            self.embed, self.attention = torch.nn.Embedding(5, 8), GroupedQueryAttention(8, 2)

        def training_step(self, row: Any, batch_idx: int) -> torch.Tensor:
            x = self.embed(row.tokens).unsqueeze(0)
            mask = masks.document(row.cu_seqlens)
            return self.attention(x, mask_mod=mask, positions=row.positions).square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    def dataloader() -> Any:
        documents = [torch.arange(n) % 5 for n in (4, 9, 3, 5, 6)]
        return tfl.PackedDataModule(documents, 12, shuffle=False).train_dataloader()

    def snapshot() -> Any:
        return tfl.MaskSnapshot(Path(tempfile.gettempdir()) / "torch_flexattn_conformance" / "mask.svg")

    return [
        CallbackCase("AttentionMonitor", lambda: tfl.AttentionMonitor(every_n_steps=1), Model, dataloader),
        CallbackCase("RecompileGuard", lambda: tfl.RecompileGuard(100, action="raise"), Model, dataloader),
        CallbackCase("MaskSnapshot", snapshot, Model, dataloader),
    ]
