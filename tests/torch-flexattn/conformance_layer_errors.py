"""Wrong calls of layers, loaders, counters and callbacks of torch-flexattn; `conformance_cases.py` hands them over."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch_flexattn as tfa
from torch_flexattn import data, masks
from torch_flexattn import nn as fnn

from tests.conformance.cases import BadInputCase


def wrong(of: str, call: Callable[[], Any], raises: type[Exception], *fragments: str) -> BadInputCase:
    """A case whose message holds the argument's name and the value."""
    return BadInputCase(of, call, raises, fragments)


def layer_errors() -> list[BadInputCase]:
    """One wrong call or more of each."""
    return [*_layers(), *_data(), *_counters(), *_callbacks()]


def _layers() -> list[BadInputCase]:
    x = torch.ones(1, 4, 8)
    layer, grouped = fnn.FlexMultiheadAttention(8, 2, batch_first=True), fnn.GroupedQueryAttention(8, 2)
    cache, keys = fnn.KVCache(1, 2, 3, 4), torch.ones(1, 2, 2, 4)
    latent = {"qk_nope_head_dim": 4, "qk_rope_head_dim": 3, "v_head_dim": 4}
    return [
        wrong("nn.FlexMultiheadAttention", lambda: fnn.FlexMultiheadAttention(8, 3), ValueError, "num_heads", "3"),
        wrong("nn.FlexMultiheadAttention", lambda: fnn.FlexMultiheadAttention(8, 2, 1.5), ValueError, "dropout", "1.5"),
        wrong(
            "nn.FlexMultiheadAttention",
            lambda: layer(x, x, x, attn_mask=torch.ones(4, 4).long()),
            TypeError,
            "attn_mask",
            "torch.int64",
        ),
        wrong("nn.convert_mha_", lambda: fnn.convert_mha_([layer]), TypeError, "model", "list"),  # type: ignore[arg-type]
        wrong("nn.GroupedQueryAttention", lambda: fnn.GroupedQueryAttention(8, 4, 3), ValueError, "num_kv_heads", "3"),
        wrong("nn.GroupedQueryAttention", lambda: grouped(x[0]), ValueError, "x", "(4, 8)"),
        wrong("nn.GroupedQueryAttention", lambda: grouped(x, counts=torch.tensor([2])), ValueError, "counts", "[2]"),
        wrong("nn.GroupedQueryAttention", lambda: grouped(x, cache={}), TypeError, "cache", "dict"),
        wrong(
            "nn.GroupedQueryAttention",
            lambda: grouped(x.expand(2, 4, 8), cache=cache),
            ValueError,
            "cache",
            "(2, 4, 8)",
        ),
        wrong("nn.KVCache", lambda: fnn.KVCache(1, 0, 4, 4), ValueError, "num_kv_heads", "0"),
        wrong("nn.KVCache", lambda: cache.append(keys, keys[:, :, :1]), ValueError, "v must", "(1, 2, 1, 4)"),
        wrong("nn.KVCache", lambda: cache.append(keys, keys, torch.ones(3).int()), ValueError, "counts", "(3,)"),
        wrong("nn.KVCache", lambda: cache.append(torch.ones(1, 2, 5, 4)), ValueError, "max_length", "5 tokens"),
        wrong(
            "nn.MultiheadLatentAttention",
            lambda: fnn.MultiheadLatentAttention(8, 2, 4, **latent),
            ValueError,
            "qk_rope_head_dim",
            "3",
        ),
        *_native_sparse(x),
        wrong("nn.NeighborhoodAttention1d", lambda: fnn.NeighborhoodAttention1d(8, 3, 3), ValueError, "num_heads", "3"),
        wrong("nn.NeighborhoodAttention2d", lambda: fnn.NeighborhoodAttention2d(8, 2, 0), ValueError, "kernel", "0"),
        wrong(
            "nn.NeighborhoodAttention3d", lambda: fnn.NeighborhoodAttention3d(8, 2, 3)(x), ValueError, "x", "(1, 4, 8)"
        ),
        wrong("nn.RopeScaling", lambda: fnn.RopeScaling("cubic", 2.0), ValueError, "kind", "'cubic'"),  # type: ignore[arg-type]
        wrong("nn.RopeScaling", lambda: fnn.RopeScaling("linear", 0.5), ValueError, "factor", "0.5"),
        wrong("nn.T5RelativeBias", lambda: fnn.T5RelativeBias(5, 2), ValueError, "buckets", "5"),
    ]


def _native_sparse(x: torch.Tensor) -> list[BadInputCase]:
    def case(raises: type[Exception], *fragments: str, **changed: Any) -> BadInputCase:
        arguments: dict[str, Any] = {"embed_dim": 8, "num_heads": 2, **changed}
        return wrong("nn.NativeSparseAttention", lambda: fnn.NativeSparseAttention(**arguments), raises, *fragments)

    layer = fnn.NativeSparseAttention(8, 2)
    return [
        case(ValueError, "num_kv_heads", "4", num_kv_heads=4),
        case(ValueError, "embed_dim", "0", embed_dim=0),
        case(ValueError, "rope_base", "3", head_dim=3),
        case(ValueError, "rope_scaling", "linear", rope_base=None, rope_scaling=fnn.RopeScaling("linear", 2.0)),
        case(ValueError, "compression", "'max'", compression="max"),
        case(ValueError, "compress_block", "40", compress_block=40),
        case(ValueError, "select_block", "72", select_block=72),
        case(ValueError, "select_block", "24", select_block=24, compress_stride=8),
        case(ValueError, "num_selected", "2", num_selected=2),
        case(TypeError, "window", "1.5", window=1.5),
        wrong("nn.NativeSparseAttention", lambda: layer(x[0]), ValueError, "x", "(4, 8)"),
    ]


def _data() -> list[BadInputCase]:
    folder = Path(tempfile.mkdtemp())
    (folder / "AzureLLMInferenceTrace_code.csv").write_text("time\n")
    (folder / "conversation_trace.jsonl").write_text("[]\n")
    (folder / "valid.txt").write_text("words\n")
    return [
        wrong("data.load_llm_trace", lambda: data.load_llm_trace("code", folder), ValueError, "line 1", "'time'"),
        wrong("data.load_llm_trace", lambda: data.load_llm_trace("chat"), ValueError, "which", "'chat'"),  # type: ignore[arg-type]
        wrong("data.load_prefix_trace", lambda: data.load_prefix_trace(folder), ValueError, "line 1", "'[]'"),
        wrong(
            "data.load_wikitext_documents",
            lambda: data.load_wikitext_documents("valid", folder),
            ValueError,
            "line 1",
            "'words'",
        ),
        wrong("data.pack_documents", lambda: data.pack_documents([3, -1], 4), ValueError, "lengths[1]", "-1"),
        wrong("data.pack_documents", lambda: data.pack_documents([3], 0), ValueError, "row_length", "0"),
        wrong("data.PackedRows", lambda: len(data.PackedRows([torch.arange(3)], -2)), ValueError, "row_length", "-2"),
    ]


def _counters() -> list[BadInputCase]:
    mask = tfa.create_block_mask(masks.causal(), None, None, 8, 8)
    return [
        wrong("listening", lambda: tfa.listening(3).__enter__(), TypeError, "listener", "int"),  # type: ignore[arg-type]
        wrong("attention_flops", lambda: tfa.attention_flops(mask, 0, 8), ValueError, "Hq", "0"),
        wrong("attention_flops", lambda: tfa.attention_flops(masks.causal(), 1, 8), TypeError, "block_mask", "MaskMod"),  # type: ignore[arg-type]
    ]


def _callbacks() -> list[BadInputCase]:
    try:
        from torch_flexattn import lightning as tfl
    except ImportError:
        return []
    tokens = torch.arange(4)
    return [
        wrong("AttentionMonitor", lambda: tfl.AttentionMonitor(every_n_steps=0), ValueError, "every_n_steps", "0"),
        wrong("AttentionMonitor", lambda: tfl.AttentionMonitor(peak_tflops=-1.0), ValueError, "peak_tflops", "-1"),
        wrong("RecompileGuard", lambda: tfl.RecompileGuard(-1), ValueError, "max_compiles", "-1"),
        wrong("RecompileGuard", lambda: tfl.RecompileGuard(1, action="stop"), ValueError, "action", "'stop'"),  # type: ignore[arg-type]
        wrong("MaskSnapshot", lambda: tfl.MaskSnapshot("mask.bmp"), ValueError, "path", "mask.bmp"),
        wrong("PackedDataModule", lambda: tfl.PackedDataModule([tokens], 0), ValueError, "row_length", "0"),
        wrong(
            "PackedDataModule", lambda: tfl.PackedDataModule([tokens / 2], 4), TypeError, "documents", "torch.float32"
        ),
    ]
