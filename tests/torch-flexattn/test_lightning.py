"""Lightning callbacks and packed data in real Trainer runs of a few steps."""

from __future__ import annotations

import csv
import importlib
import itertools
import logging
import sys

import pytest
import torch

pytest.importorskip("lightning", reason="extra: lightning")

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger
from torch_flexattn import flex_attention, forget_masks, mask_mod, masks
from torch_flexattn.lightning import (
    AttentionMonitor,
    MaskSnapshot,
    PackedDataModule,
    RecompileError,
    RecompileGuard,
)
from torch_flexattn.stats import LISTENERS

HEADS, WIDTH = 2, 8
DOCUMENTS = [torch.arange(n) % 11 for n in (9, 4, 14, 3, 6, 5)]


@pytest.fixture(autouse=True)
def _quiet():
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    forget_masks()
    yield
    assert LISTENERS == []


class Model(LightningModule):
    """Two layers of attention inside documents, which share a mask."""

    def __init__(self, fails_at: int = -1, new_function: bool = False):
        super().__init__()
        torch.manual_seed(0)
        self.embed = torch.nn.Embedding(11, HEADS * WIDTH)
        self.fails_at, self.new_function, self.bounds, self.tokens = fails_at, new_function, [], []

    def attend(self, x, mask):
        q = x.view(1, -1, HEADS, WIDTH).transpose(1, 2)
        return flex_attention(q, q, q, block_mask=mask).transpose(1, 2).reshape(x.shape)

    def training_step(self, row, batch_idx):
        self.bounds.append(row.cu_seqlens.tolist())
        self.tokens.append(row.tokens)
        if batch_idx == self.fails_at:
            raise ArithmeticError("planted")
        mask = masks.causal() & masks.document(row.cu_seqlens)
        if self.new_function:
            text = f"lambda b, h, i, j: (i >= j) & (i - j < {len(self.bounds)} + 100 * {batch_idx + 7})"
            mask = mask_mod(eval(text.replace("< ", f"< {len(self.bounds)} * ")))
        x = self.embed(row.tokens)
        return self.attend(self.attend(x, mask), mask).square().mean()

    def validation_step(self, row, batch_idx):
        self.log("val_loss", self.embed(row.tokens).mean(), batch_size=1)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def trainer(folder, **options) -> Trainer:
    quiet = {"accelerator": "cpu", "devices": 1, "logger": False, "enable_progress_bar": False}
    quiet |= {"enable_model_summary": False, "enable_checkpointing": False, "default_root_dir": folder}
    return Trainer(**(quiet | {"max_epochs": 1, "num_sanity_val_steps": 0} | options))


def packed(**options) -> PackedDataModule:
    return PackedDataModule(DOCUMENTS, 16, **({"shuffle": False} | options))


def visible(bounds):
    lengths = [b - a for a, b in itertools.pairwise(bounds)]
    return sum(n * (n + 1) // 2 for n in lengths)


# --- AttentionMonitor ---


def test_the_monitor_logs_what_the_last_measured_step_did(tmp_path):
    model = Model()
    run = trainer(tmp_path, callbacks=[AttentionMonitor(every_n_steps=2, peak_tflops=1e-3)])
    run.fit(model, packed())
    logged = {name.removeprefix("attn/"): float(value) for name, value in run.callback_metrics.items()}
    assert len(model.bounds) == 3
    assert logged["visible_pairs"] == 2 * HEADS * visible(model.bounds[2])  # layers, heads
    assert logged["sparsity"] == 0  # 16 positions are one block
    assert logged["mfu"] == pytest.approx(1e3 * logged["tflops"], rel=1e-3)
    assert logged["tflops"] > 0
    assert logged["mask_build_ms"] > 0
    assert logged["peak_mem_mb"] > 10


def test_sparsity_is_of_blocks_and_mfu_needs_a_peak(tmp_path):
    data = PackedDataModule([torch.zeros(256, dtype=torch.int64), torch.zeros(256, dtype=torch.int64)], 512)
    run = trainer(tmp_path, callbacks=[AttentionMonitor()])
    run.fit(Model(), data)
    assert float(run.callback_metrics["attn/sparsity"]) == pytest.approx(100 * (1 - 6 / 16))
    assert "attn/mfu" not in run.callback_metrics  # a CPU's peak is not known


def test_figures_and_the_kernel_reach_a_logger(tmp_path):
    run = trainer(
        tmp_path, callbacks=[AttentionMonitor(every_n_steps=1)], logger=CSVLogger(tmp_path), log_every_n_steps=1
    )
    run.fit(Model(), packed())
    with open(f"{run.logger.log_dir}/metrics.csv") as lines:
        rows = list(csv.DictReader(lines))
    assert {row["attn/kernel"] for row in rows} - {""} == {"cpu"}
    assert sum(bool(row["attn/visible_pairs"]) for row in rows) == 3


def test_a_logger_of_text_gets_the_kernel_as_text(tmp_path):
    written = []

    class Logger(CSVLogger):
        @property
        def experiment(self):
            super().experiment.add_text = lambda name, text, step: written.append((name, text, step))
            return super().experiment

    run = trainer(tmp_path, callbacks=[AttentionMonitor(every_n_steps=2)], logger=Logger(tmp_path))
    run.fit(Model(), packed())
    assert written == [("attn/kernel", "cpu", 1), ("attn/kernel", "cpu", 3)]


def test_the_monitor_says_when_there_is_no_attention(tmp_path):
    class Plain(Model):
        def attend(self, x, mask):
            return x

    with pytest.warns(UserWarning, match="heard of no call of flex_attention"):
        trainer(tmp_path, callbacks=[AttentionMonitor()]).fit(Plain(), packed())


@pytest.mark.parametrize("callback", [lambda p: AttentionMonitor(every_n_steps=1), lambda p: MaskSnapshot(p / "m.txt")])
def test_nobody_listens_after_an_exception(tmp_path, callback):
    with pytest.raises(ArithmeticError, match="planted"):
        trainer(tmp_path, callbacks=[callback(tmp_path)]).fit(Model(fails_at=0), packed())
    assert LISTENERS == []


def test_steps_that_are_not_measured_are_not_listened_to(tmp_path):
    heard = []

    class Watching(Model):
        def training_step(self, row, batch_idx):
            heard.append(len(LISTENERS))
            return super().training_step(row, batch_idx)

    trainer(tmp_path, callbacks=[AttentionMonitor(every_n_steps=2)]).fit(Watching(), packed())
    assert heard == [1, 0, 1]


# --- RecompileGuard ---


def test_the_guard_is_silent_while_only_numbers_and_tensors_change(tmp_path):
    Model().attend(torch.ones(4, HEADS * WIDTH), masks.causal() & masks.document([0, 4]))
    run = trainer(tmp_path, callbacks=[RecompileGuard(0, action="raise")], max_epochs=2)
    run.fit(Model(), packed(shuffle=True))
    assert run.global_step == 6


def test_the_guard_raises_where_every_step_has_another_function(tmp_path):
    run = trainer(tmp_path, callbacks=[RecompileGuard(1, action="raise")])
    with pytest.raises(RecompileError, match=r"2 compiles since training began, and max_compiles is 1: 2 functions"):
        run.fit(Model(new_function=True), packed())
    assert run.global_step == 2


def test_the_guard_warns_once_a_run(tmp_path, recwarn):
    run = trainer(tmp_path, callbacks=[RecompileGuard(0)], max_epochs=2)
    run.fit(Model(new_function=True), packed())
    assert sum("max_compiles is 0" in str(w.message) for w in recwarn.list) == 1
    assert run.global_step == 6


# --- MaskSnapshot ---


def test_the_snapshot_is_of_the_first_mask(tmp_path):
    model, path = Model(), tmp_path / "pictures" / "mask.txt"
    trainer(tmp_path, callbacks=[MaskSnapshot(path)], max_epochs=2).fit(model, packed())
    text = path.read_text()
    path.unlink()
    trainer(tmp_path, callbacks=[MaskSnapshot(path)]).fit(model, packed())
    assert path.read_text() == text
    assert "16" in text


def test_a_snapshot_of_a_run_without_masks_writes_nothing(tmp_path):
    class Plain(Model):
        def attend(self, x, mask):
            return super().attend(x, None)

    trainer(tmp_path, callbacks=[MaskSnapshot(tmp_path / "mask.svg")]).fit(Plain(), packed())
    assert not (tmp_path / "mask.svg").exists()


# --- PackedDataModule ---


def test_rows_hold_every_token_in_order_with_its_documents_bounds(tmp_path):
    rows = list(packed().train_dataloader())
    assert torch.equal(torch.cat([row.tokens for row in rows]), torch.cat(DOCUMENTS))
    assert [row.cu_seqlens.tolist() for row in rows] == [[0, 9, 13, 16], [0, 11, 14, 16], [0, 4, 9]]
    assert rows[0].cu_seqlens.dtype == torch.int32
    assert rows[0].positions.tolist() == [*range(9), *range(4), *range(3)]


def test_epochs_have_other_orders_and_a_resumed_run_the_same(tmp_path):
    whole = Model()
    trainer(tmp_path, max_epochs=2).fit(whole, packed(shuffle=True, how="whole"))
    first, second = whole.bounds[: len(whole.bounds) // 2], whole.bounds[len(whole.bounds) // 2 :]
    run = trainer(tmp_path)
    run.fit(Model(), packed(shuffle=True, how="whole"))
    run.save_checkpoint(tmp_path / "half.ckpt")
    again = Model()
    resumed = trainer(tmp_path, max_epochs=2)
    resumed.fit(again, packed(shuffle=True, how="whole"), ckpt_path=tmp_path / "half.ckpt")
    assert again.bounds == second
    assert [t.tolist() for t in again.tokens] == [t.tolist() for t in whole.tokens[len(first) :]]
    assert [t.tolist() for t in again.tokens] != [t.tolist() for t in whole.tokens[: len(first)]]


def test_ranks_share_the_rows_and_have_as_many(tmp_path):
    class Rank:
        current_epoch, world_size = 0, 2

        def __init__(self, rank):
            self.global_rank = rank

    own = []
    for rank in range(2):
        data = packed()
        data.trainer = Rank(rank)
        assert len(data.train_dataloader()) == 1
        own += [row.tokens for row in data.train_dataloader()]
    assert torch.equal(torch.cat(own), torch.cat(DOCUMENTS)[:32])


def test_validation_rows_are_validated(tmp_path):
    run = trainer(tmp_path)
    run.fit(Model(), packed(val_documents=DOCUMENTS[:2]))
    assert "val_loss" in run.callback_metrics


def test_bad_options_are_named(tmp_path):
    with pytest.raises(
        TypeError, match=r"documents must be integer tensors \[n\], got torch.float32 \(3,\) as number 1"
    ):
        PackedDataModule([DOCUMENTS[0], torch.ones(3)], 4)
    with pytest.raises(ValueError, match="documents must hold tokens, got 1 documents without any"):
        PackedDataModule([DOCUMENTS[0][:0]], 4)
    with pytest.raises(ValueError, match=r"action must be one of .*'stop'"):
        RecompileGuard(1, action="stop")
    with pytest.raises(ValueError, match=r"path .*mask\.bmp"):
        MaskSnapshot("mask.bmp")
    with pytest.raises(ValueError, match=r"every_n_steps .* got 0"):
        AttentionMonitor(every_n_steps=0)
    with pytest.raises(ValueError, match="peak_tflops must be a positive number, got -1"):
        AttentionMonitor(peak_tflops=-1.0)


def test_a_missing_extra_names_the_pip_command(monkeypatch):
    for name in [n for n in sys.modules if n.split(".")[0] == "lightning"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "lightning", None)
    monkeypatch.delitem(sys.modules, "torch_flexattn.lightning")
    with pytest.raises(ImportError, match=r"pip install 'torch-flexattn\[lightning\]'"):
        importlib.import_module("torch_flexattn.lightning")
