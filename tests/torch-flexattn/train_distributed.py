"""One rank of a training run on two processes; ``test_lightning_distributed.py`` starts it and reads what it prints.

python tests/torch-flexattn/train_distributed.py FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from lightning.pytorch import LightningModule, Trainer
from torch_flexattn import masks
from torch_flexattn.lightning import AttentionMonitor, MaskSnapshot, PackedDataModule, RecompileGuard
from torch_flexattn.nn import GroupedQueryAttention


class Model(LightningModule):
    """Attention inside documents; keeps what it was given."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.attention = torch.nn.Embedding(11, 8), GroupedQueryAttention(8, 2)
        self.tokens: list[int] = []

    def training_step(self, row, batch_idx):
        self.tokens += row.tokens.tolist()
        x = self.embed(row.tokens).unsqueeze(0)
        return self.attention(x, mask_mod=masks.document(row.cu_seqlens), positions=row.positions).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def main(folder: Path) -> None:
    documents = [torch.arange(n) % 11 for n in (9, 4, 14, 3, 6, 12)]
    callbacks = [
        AttentionMonitor(every_n_steps=1),
        RecompileGuard(50, action="raise"),
        MaskSnapshot(folder / "mask.svg"),
    ]
    trainer = Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_epochs=1, callbacks=callbacks, logger=False,
        enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False, default_root_dir=folder,
        use_distributed_sampler=False,
    )  # fmt: skip
    model = Model()
    trainer.fit(model, PackedDataModule(documents, 16, shuffle=False))
    said = {
        "steps": trainer.global_step,
        "tokens": model.tokens,
        "visible": float(trainer.callback_metrics["attn/visible_pairs"]),
        "weights": float(model.embed.weight.sum()),
    }
    (folder / f"rank{trainer.global_rank}.json").write_text(json.dumps(said))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
