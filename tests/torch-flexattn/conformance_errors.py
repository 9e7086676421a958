"""Wrong calls of torch-flexattn's public surface, for the conformance suite; `conformance_cases.py` hands them over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch_flexattn as tfa
from torch_flexattn import masks, scores, viz

from tests.conformance.cases import BadInputCase

from .conformance_batcher import batcher_errors
from .conformance_paged import paged_errors
from .conformance_parallel import parallel_errors
from .conformance_selected import selected_errors


def wrong(of: str, call: Callable[[], Any], raises: type[Exception], *fragments: str) -> BadInputCase:
    """A case whose message holds the argument's name and the value."""
    return BadInputCase(of, call, raises, fragments)


def bad_inputs() -> list[BadInputCase]:
    """One wrong call or more of everything public that raises."""
    return [
        *_attention(),
        *_options(),
        *_packed(),
        *_parts(),
        *_rounded(),
        *_block_masks(),
        *_mods(),
        *_masks(),
        *_grids(),
        *_biases(),
        *_distances(),
        *_pictures(),
        *paged_errors(),
        *parallel_errors(),
        *batcher_errors(),
        *selected_errors(),
    ]


def _attention() -> list[BadInputCase]:
    q, k, v = torch.ones(2, 4, 5, 8), torch.ones(2, 2, 7, 8), torch.ones(2, 2, 7, 3)

    def case(raises: type[Exception], *fragments: str, **changed: Any) -> BadInputCase:
        arguments = {"query": q, "key": k, "value": v, "enable_gqa": True, **changed}
        return wrong("flex_attention", lambda: tfa.flex_attention(**arguments), raises, *fragments)

    mask = tfa.create_block_mask(masks.causal(), None, None, 9, 7)
    listed = tfa.from_block_indices(torch.zeros(1, 1, 1, 1, dtype=torch.int64), q_len=5, kv_len=7, mod=masks.causal())

    def beyond(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return score + table[kv_idx]

    table = torch.ones(6)
    eight = {name: t.to(torch.float8_e4m3fn) for name, t in (("query", q), ("key", k), ("value", v))}
    return [
        case(TypeError, "query", "list", query=[1.0]),
        case(ValueError, "key", "(2, 2, 7)", key=k[..., 0]),
        case(TypeError, "value", "torch.int64", value=v.long()),
        case(ValueError, "one dtype", "torch.float16", query=q.half()),
        case(ValueError, "features", "(2, 4, 5, 6)", query=q[..., :6]),
        case(ValueError, "key and value", "(2, 2, 6, 3)", value=v[:, :, :6]),
        case(ValueError, "batch", "(3, 4, 5, 8)", query=torch.ones(3, 4, 5, 8)),
        case(ValueError, "heads", "(2, 3, 5, 8)", query=q[:, :3]),
        case(ValueError, "enable_gqa=True", "(2, 4, 5, 8)", enable_gqa=False),
        case(TypeError, "scale", "'small'", scale="small"),
        case(ValueError, "block_mask", "9 queries", block_mask=mask),
        case(TypeError, "score_mod", "int", score_mod=3),
        case(TypeError, "mask_mod", "ScoreMod", mask_mod=scores.softcap(2.0)),
        case(TypeError, "score_mod", "MaskMod", score_mod=masks.causal()),
        case(NotImplementedError, "q_offset", "list", q_offset=1, block_mask=listed),
        case(ValueError, "q_offset", "(3,)", q_offset=torch.ones(3, dtype=torch.int64)),
        case(TypeError, "q_offset", "torch.float32", q_offset=torch.ones(2)),
        case(ValueError, "kv_lens", "got 8", kv_lens=torch.tensor([8, 1])),
        case(ValueError, "kv_lens", "got -1", kv_lens=torch.tensor([3, -1])),
        case(ValueError, "sinks", "(2,)", sinks=torch.ones(2)),
        case(TypeError, "sinks", "torch.int64", sinks=torch.ones(4, dtype=torch.int64)),
        case(ValueError, "dropout_p", "1.0", dropout_p=1.0),
        case(ValueError, "seed", "-1", dropout_p=0.5, seed=-1),
        case(TypeError, "seed", "torch.float32", dropout_p=0.5, seed=torch.ones(1)),
        case(ValueError, "seed", "(2,)", dropout_p=0.5, seed=torch.arange(2)),
        case(TypeError, "seed", "'lucky'", dropout_p=0.5, seed="lucky"),
        case(TypeError, "q_descale", "torch.float64", **eight, q_descale=torch.ones(4).double()),
        case(ValueError, "k_descale", "(3,)", **eight, k_descale=torch.ones(3)),
        case(ValueError, "v_descale", "torch.float32", v_descale=torch.ones(2)),
        case(NotImplementedError, "gradient", "torch.float8_e4m3fn", **eight | {"query": q.clone().requires_grad_()}),
        case(TypeError, "deterministic", "'yes'", deterministic="yes"),
        case(ValueError, "deterministic=True", "seed=None", deterministic=True, dropout_p=0.5),
        case(ValueError, "deterministic=True", "'reference'", deterministic=True, backend="reference"),
        case(TypeError, "batch_invariant", "got 2", batch_invariant=2),
        case(TypeError, "enable_gqa", "got 'yes'", enable_gqa="yes"),
        case(TypeError, "return_lse", "got 1", return_lse=1),
        case(TypeError, "check", "got 'no'", check="no"),
        case(ValueError, "batch_invariant=True", "dropout_p=0.5", batch_invariant=True, dropout_p=0.5),
        case(ValueError, "deterministic=True", "'hopper'", deterministic=True, backend="hopper"),
        case(ValueError, "autotune", "'db'", batch_invariant=True, kernel_options={"autotune": "db"}),
        case(ValueError, "batch_invariant=True", "'reference'", batch_invariant=True, backend="reference"),
        case(ValueError, "backend", "'fast'", backend="fast"),
        case(ValueError, "return_aux", "return_lse", return_lse=True, return_aux=tfa.AuxRequest(lse=True)),
        case(IndexError, "score_mod", "kv=6", score_mod=beyond),
        case(ValueError, "kernel option", "'BLOCKS'", kernel_options={"BLOCKS": 3}),
        case(TypeError, "kernel_options", "list", kernel_options=[64]),
    ]


def _options() -> list[BadInputCase]:
    def case(raises: type[Exception], name: str, value: Any) -> BadInputCase:
        return wrong("KernelOptions", lambda: tfa.KernelOptions(**{name: value}), raises, name, repr(value))

    return [
        case(ValueError, "BLOCK_M", 100),
        case(TypeError, "num_stages", 2.5),
        case(TypeError, "PRESCALE_QK", "yes"),
        case(ValueError, "precision", "fp4"),
        case(ValueError, "autotune", "always"),
        wrong("CallSpec", lambda: tfa.CallSpec((1, 2, 3), (1, 2, 3, 4)), ValueError, "query", "(1, 2, 3)"),
        wrong("warmup", lambda: tfa.warmup([3]), TypeError, "specs", "int"),
        wrong("warmup", lambda: tfa.warmup(3), TypeError, "specs must be a list", "3"),  # type: ignore[arg-type]
    ]


def _packed() -> list[BadInputCase]:
    q, k, bounds = torch.ones(7, 2, 4), torch.ones(9, 2, 4), torch.tensor([0, 3, 7])

    def case(raises: type[Exception], *fragments: str, **changed: Any) -> BadInputCase:
        arguments = {"query": q, "key": k, "value": k, "cu_seqlens_q": bounds, "cu_seqlens_k": bounds + bounds // 4 * 2}

        def call() -> Any:
            return tfa.flex_attention_varlen(**arguments | changed)

        return wrong("flex_attention_varlen", call, raises, *fragments)

    return [
        case(ValueError, "query", "(1, 7, 2, 4)", query=q[None]),
        case(TypeError, "cu_seqlens_q", "torch.float32", cu_seqlens_q=bounds.float()),
        case(ValueError, "cu_seqlens_q", "9", cu_seqlens_q=torch.tensor([0, 3, 9])),
        case(ValueError, "max_seqlen_q", "got 3", max_seqlen_q=3),
        case(TypeError, "max_seqlen_k", "'long'", max_seqlen_k="long"),
        case(ValueError, "cu_seqlens_k", "got 2 and 1", cu_seqlens_k=torch.tensor([0, 9])),
        case(TypeError, "batch_invariant", "None", batch_invariant=None),
    ]


def _rounded() -> list[BadInputCase]:
    x = torch.ones(1, 2, 3, 4)

    def case(raises: type[Exception], *fragments: str, of: Any = x, **options: Any) -> BadInputCase:
        return wrong("quantize_fp8", lambda: tfa.quantize_fp8(of, **options), raises, *fragments)

    return [
        case(TypeError, "x must", "torch.int64", of=x.long()),
        case(TypeError, "x must", "torch.float8_e4m3fn", of=x.to(torch.float8_e4m3fn)),
        case(ValueError, "x must", "(2, 3, 4)", of=x[0]),
        case(ValueError, "descale", "(3,)", descale=torch.ones(3)),
        case(TypeError, "descale", "torch.float64", descale=torch.ones(2).double()),
    ]


def _parts() -> list[BadInputCase]:
    out, lse = torch.ones(2, 3, 4), torch.ones(2, 3)
    return [
        wrong("merge_attention", lambda: tfa.merge_attention([]), ValueError, "parts", "[]"),
        wrong("merge_attention", lambda: tfa.merge_attention([(out, lse[:1])]), ValueError, "parts", "(1, 3)"),
        wrong("merge_attention", lambda: tfa.merge_attention([out]), TypeError, "parts", "Tensor"),  # type: ignore
        wrong(
            "merge_attention",
            lambda: tfa.merge_attention([(out, lse), (out[1:], lse[1:])]),
            ValueError,
            "parts",
            "(1, 3, 4)",
        ),
    ]


def _block_masks() -> list[BadInputCase]:
    def blocks(*arguments: Any, **options: Any) -> Callable[[], Any]:
        return lambda: tfa.create_block_mask(*arguments, **options)

    def listed(indices: torch.Tensor, number: torch.Tensor | None = None, **options: Any) -> Callable[[], Any]:
        return lambda: tfa.from_block_indices(indices, number, **{"q_len": 200, "kv_len": 300, **options})

    causal, first = masks.causal(), torch.zeros(1, 1, 2, 1, dtype=torch.int64)
    table = torch.ones(4, dtype=torch.bool)
    beyond = tfa.mask_mod(lambda b, h, q_idx, kv_idx: ~table[q_idx])
    return [
        wrong("create_block_mask", blocks(causal, None, None, -1, 8), ValueError, "Q_LEN", "-1"),
        wrong("create_block_mask", blocks(causal, None, None, 8, 8.0), TypeError, "KV_LEN", "8.0"),
        wrong("create_block_mask", blocks(causal, None, None, 8, 8, BLOCK_SIZE=100), ValueError, "BLOCK_SIZE", "100"),
        wrong("create_block_mask", blocks(causal, None, None, 8, 8, method="fast"), ValueError, "method", "'fast'"),
        wrong("create_block_mask", blocks(None, None, None, 8, 8), TypeError, "mask_mod", "NoneType"),
        wrong("create_block_mask", blocks(beyond, None, None, 8, 8), IndexError, "mask_mod", "(4,)"),
        wrong("create_mask", lambda: tfa.create_mask("causal", None, None, 8, 8), TypeError, "mask_mod", "str"),
        wrong("from_block_indices", listed(first.float()), TypeError, "kv_indices", "torch.float32"),
        wrong("from_block_indices", listed(first[0]), ValueError, "kv_indices", "(1, 2, 1)"),
        wrong("from_block_indices", listed(first + 3), ValueError, "kv_indices", "got 3"),
        wrong("from_block_indices", listed(first.expand(1, 1, 2, 2)), ValueError, "kv_indices", "block 0"),
        wrong("from_block_indices", listed(first, q_len=900), ValueError, "q_len", "900"),
        wrong("from_block_indices", listed(first, group=0), ValueError, "group", "0"),
        wrong("from_block_indices", listed(first, block=(128, 100)), ValueError, "block", "(128, 100)"),
    ]


def _mods() -> list[BadInputCase]:
    table = torch.ones(3)

    def of_two(q_idx: Any, kv_idx: Any) -> Any:
        return q_idx >= kv_idx

    def says_yes(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return "yes"

    def hides(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return q_idx < kv_idx

    def sorts(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return torch.sort(table).values[q_idx] > 0

    return [
        wrong("and_masks", lambda: tfa.and_masks(masks.causal(), 7), TypeError, "mask_mod", "int"),
        wrong("or_masks", lambda: tfa.or_masks("causal"), TypeError, "mask_mod", "str"),
        wrong("not_mask", lambda: tfa.not_mask(scores.softcap(2.0)), TypeError, "mask_mod", "ScoreMod"),
        wrong("MaskMod.shift", lambda: masks.causal().shift(2.5), TypeError, "q", "2.5"),  # type: ignore[arg-type]
        wrong(
            "masks.with_lengths", lambda: masks.with_lengths(masks.natten1d(4, 3), 5, 4), ValueError, "4 tokens", "5 q"
        ),
        wrong("MaskMod.on_heads", lambda: masks.causal().on_heads([-1]), ValueError, "heads", "-1"),
        wrong("MaskMod.on_heads", lambda: masks.causal().on_heads(1), TypeError, "heads", "1"),  # type: ignore
        wrong("MaskMod.on_heads", lambda: masks.causal().on_heads(["a"]), TypeError, "heads", "'a'"),  # type: ignore
        wrong("MaskMod.per_batch", lambda: tfa.MaskMod.per_batch([]), ValueError, "masks", "[]"),
        wrong("explain", lambda: tfa.explain(3), TypeError, "mod", "int"),  # type: ignore[arg-type]
        wrong("explain", lambda: tfa.explain(masks.causal(), kv_len=9), ValueError, "kv_len", "9"),
        wrong("mask_mod", lambda: tfa.mask_mod(7), TypeError, "mask_mod", "int"),
        wrong("mask_mod", lambda: tfa.mask_mod(of_two), TypeError, "of_two", "mask_mod(b, h, q_idx, kv_idx)"),
        wrong("mask_mod", lambda: tfa.mask_mod(says_yes), TypeError, "says_yes", "str"),
        wrong("mask_mod", lambda: tfa.mask_mod(sorts), NotImplementedError, "conformance_errors.py", "sort"),
        wrong("score_mod", lambda: tfa.score_mod(masks.causal()), TypeError, "score_mod", "MaskMod"),
        wrong("score_mod", lambda: tfa.score_mod(hides), TypeError, "hides", "torch.bool"),
    ]


def _masks() -> list[BadInputCase]:
    def case(name: str, call: Callable[[], Any], raises: type[Exception], *fragments: str) -> BadInputCase:
        return wrong(f"masks.{name}", call, raises, *fragments)

    flat, halves = torch.ones(4, dtype=torch.bool), torch.tensor([0.5])
    return [
        case("causal", lambda: masks.causal("bottom_right", q_len=3), ValueError, "kv_len", "None"),
        case("causal", lambda: masks.causal("middle"), ValueError, "align", "'middle'"),
        case("prefix_lm", lambda: masks.prefix_lm(-1), ValueError, "p", "-1"),
        case("sliding_window", lambda: masks.sliding_window(), ValueError, "left", "None"),
        case("sliding_window", lambda: masks.sliding_window(2.5), TypeError, "w", "2.5"),
        case("dilated", lambda: masks.dilated(8, 0), ValueError, "d", "0"),
        case("streaming", lambda: masks.streaming(-4, 8), ValueError, "n_sink", "-4"),
        case("chunked", lambda: masks.chunked(0), ValueError, "c", "0"),
        case("document", lambda: masks.document(), ValueError, "cu_seqlens", "neither"),
        case("document", lambda: masks.document([0, 5, 3]), ValueError, "cu_seqlens", "[0, 5, 3]"),
        case("document", lambda: masks.document(doc_ids=halves), TypeError, "doc_ids", "torch.float32"),
        case("padding", lambda: masks.padding([3, -2]), ValueError, "lens", "-2"),
        case("shared_prefix", lambda: masks.shared_prefix(2, [3], prefix="none"), ValueError, "prefix", "'none'"),
        case("multi_turn_packed", lambda: masks.multi_turn_packed([0, 4, 9], [0, 9]), ValueError, "cu_turns", "at 4"),
        case("block_diffusion", lambda: masks.block_diffusion(8, 0), ValueError, "block", "0"),
        case("block_sparse", lambda: masks.block_sparse(flat), ValueError, "blocks", "[4]"),
        case("topk_blocks", lambda: masks.topk_blocks(flat), TypeError, "indices", "torch.bool"),
        case("from_dense", lambda: masks.from_dense(flat), ValueError, "mask", "[4]"),
        case("global_local", lambda: masks.global_local(4), ValueError, "n_global", "neither"),
        case("longformer", lambda: masks.longformer(4, 1, dilation=0), ValueError, "dilation", "0"),
        case("bigbird", lambda: masks.bigbird(256, n_window=2), ValueError, "n_window", "2"),
        case("image_text", lambda: masks.image_text(halves), TypeError, "segments", "torch.float32"),
        case("transfusion", lambda: masks.transfusion([0, 3], 8), ValueError, "spans", "[2]"),
        case("flamingo", lambda: masks.flamingo([0, 1], -3), ValueError, "tokens_per_media", "-3"),
        case("tree", lambda: masks.tree([-1, 1]), ValueError, "parents", "got 1 of 1"),
    ]


def _grids() -> list[BadInputCase]:
    return [
        wrong("masks.natten1d", lambda: masks.natten1d(8, 9), ValueError, "kernel", "9"),
        wrong("masks.natten2d", lambda: masks.natten2d((4, 4), (3, 3, 3)), ValueError, "kernel", "(3, 3, 3)"),
        wrong("masks.natten3d", lambda: masks.natten3d((4, 4, 4), 3, stride=4), ValueError, "stride", "4 > 3"),
        wrong("masks.axial", lambda: masks.axial((4, 4), 2), ValueError, "dim", "got 2"),
        wrong("masks.sliding_tile", lambda: masks.sliding_tile((4, 4), (2, 2), (3, 2)), ValueError, "kernel", "got 3"),
        wrong("masks.tile_order", lambda: masks.tile_order((4, 4), (3, 2)), ValueError, "tile", "(3, 2)"),
    ]


def _biases() -> list[BadInputCase]:
    table = torch.ones(2, 4)
    return [
        wrong("scores.relative_bias", lambda: scores.relative_bias(table), ValueError, "table", "[2, 4]"),
        wrong("scores.t5_bias", lambda: scores.t5_bias(table[0]), ValueError, "table", "[4]"),
        wrong("scores.t5_buckets", lambda: scores.t5_buckets(5), ValueError, "buckets", "5"),
        wrong("scores.swin_bias", lambda: scores.swin_bias(table, 2), ValueError, "table", "[2, 4]"),
        wrong("scores.pair_bias", lambda: scores.pair_bias(table[0]), ValueError, "bias", "[4]"),
        wrong("scores.add_mask", lambda: scores.add_mask(table.long()), TypeError, "mask", "torch.int64"),
        wrong("scores.graphormer", lambda: scores.graphormer(table, table), TypeError, "dist", "torch.float32"),
    ]


def _distances() -> list[BadInputCase]:
    two, three = torch.ones(2), torch.ones(3)
    return [
        wrong("scores.alibi", lambda: scores.alibi(0), ValueError, "slopes", "0"),
        wrong("scores.alibi_slopes", lambda: scores.alibi_slopes(-2), ValueError, "heads", "-2"),
        wrong("scores.distance_decay", lambda: scores.distance_decay(two.long()), TypeError, "decay", "torch.int64"),
        wrong("scores.sandwich", lambda: scores.sandwich(4, 16, dim=7), ValueError, "dim", "7"),
        wrong("scores.kerple", lambda: scores.kerple(two, three), ValueError, "r2", "[3]"),
        wrong("scores.fire", lambda: scores.fire(two, three, two[None], two[:1]), ValueError, "b1", "[3]"),
        wrong("scores.softcap", lambda: scores.softcap(0.0), ValueError, "c", "0.0"),
        wrong("scores.temperature", lambda: scores.temperature(-1.0), ValueError, "t", "-1.0"),
        wrong("scores.logit_scale", lambda: scores.logit_scale(two.long()), TypeError, "log_scale", "torch.int64"),
    ]


def _pictures() -> list[BadInputCase]:
    causal = masks.causal()
    mask = tfa.create_block_mask(causal, None, None, 64, 64)
    return [
        wrong("viz.text", lambda: viz.text(causal), ValueError, "q_len", "None"),
        wrong("viz.text", lambda: viz.text("causal", 8), TypeError, "mask", "str"),
        wrong("viz.svg", lambda: viz.svg(mask, 64), ValueError, "q_len", "q_len=64"),
        wrong("viz.png", lambda: viz.png(causal, 8, batch=-1), ValueError, "batch", "-1"),
        wrong("viz.save", lambda: viz.save("mask.bmp", mask), ValueError, "path", "mask.bmp"),
    ]
