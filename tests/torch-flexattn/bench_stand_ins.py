"""Modules that take the calls of FlashAttention's and FlashInfer's packages and compute what they do, densely.

Names, order and defaults of the arguments are those of fa3-fwd 0.0.3, flash-attn 2 and flashinfer-python 0.7.
"""

from __future__ import annotations

from types import ModuleType

import torch


def attend(q, k, v, causal, window_size, softcap):
    """``[B, L, Hq, E]`` by ``[B, S, Hkv, E]``; the last query has the number of the last key."""
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    scores = q @ k.transpose(2, 3) * q.shape[-1] ** -0.5
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    i = torch.arange(q.shape[2])[:, None] + k.shape[2] - q.shape[2]
    j = torch.arange(k.shape[2])
    left, right = window_size
    hidden = torch.zeros(q.shape[2], k.shape[2], dtype=torch.bool)
    hidden |= (j > i) if causal else hidden
    hidden |= (i - j > left) if left >= 0 else hidden
    hidden |= (j - i > right) if right >= 0 else hidden
    return (scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v).transpose(1, 2)


def flash_attention(name):
    """A module of version 2 or 3; the layout that the kernels want is demanded."""
    module = ModuleType(name)

    def flash_attn_func(q, k, v, *, causal=False, window_size=(-1, -1), softcap=0.0):
        assert all(t.is_contiguous() for t in (q, k, v))
        out = attend(q, k, v, causal, window_size, softcap)
        return (out, None) if name == "fa3_fwd_interface" else out  # some builds return sums beside it

    def flash_attn_varlen_func(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, *, causal=False, window_size=(-1, -1),
        softcap=0.0,
    ):  # fmt: skip
        assert cu_seqlens_q.dtype == cu_seqlens_k.dtype == torch.int32
        parts = []
        for start, stop in zip(cu_seqlens_q.tolist(), cu_seqlens_q.tolist()[1:]):
            assert stop - start <= min(max_seqlen_q, max_seqlen_k)
            parts.append(attend(*(t[None, start:stop] for t in (q, k, v)), causal, window_size, softcap)[0])
        return torch.cat(parts)

    def flash_attn_with_kvcache(
        q, k_cache, v_cache, *, cache_seqlens=None, page_table=None, causal=False, window_size=(-1, -1), softcap=0.0
    ):
        if page_table is not None:
            assert page_table.dtype == torch.int32
            longest = int(cache_seqlens.max())
            k_cache, v_cache = (t[page_table.long()].flatten(1, 2)[:, :longest] for t in (k_cache, v_cache))
        return attend(q, k_cache, v_cache, causal, window_size, softcap)

    module.flash_attn_func = flash_attn_func
    module.flash_attn_varlen_func = flash_attn_varlen_func
    module.flash_attn_with_kvcache = flash_attn_with_kvcache
    return module


def flashinfer():
    """Its batch decoding."""
    module = ModuleType("flashinfer")

    class BatchDecodeWithPagedKVCacheWrapper:
        def __init__(self, float_workspace_buffer, kv_layout="NHD", *, use_tensor_cores=False):
            assert float_workspace_buffer.dtype == torch.uint8
            assert not float_workspace_buffer.any()
            assert kv_layout == "NHD"

        def plan(
            self, indptr, indices, last_page_len, num_qo_heads, num_kv_heads, head_dim, page_size, *, window_left=-1,
            logits_soft_cap=None, q_data_type="float16", kv_data_type=None,
        ):  # fmt: skip
            assert {t.dtype for t in (indptr, indices, last_page_len)} == {torch.int32}
            self.sizes = (page_size, num_kv_heads, head_dim)
            self.heads, self.dtypes = num_qo_heads, (q_data_type, kv_data_type)
            ends = zip(indptr.tolist(), indptr.tolist()[1:], last_page_len.tolist())
            self.sequences = [
                (indices[start:stop].long(), (stop - start - 1) * page_size + last) for start, stop, last in ends
            ]
            self.window, self.cap = (window_left, -1), logits_soft_cap or 0.0

        def run(self, q, paged_kv_cache):
            k, v = paged_kv_cache
            assert k.shape[1:] == v.shape[1:] == self.sizes
            assert (q.dtype, k.dtype) == self.dtypes
            assert q.shape[1] == self.heads
            found = []
            for row, (pages, length) in zip(q, self.sequences, strict=True):
                keys, values = (t[pages].flatten(0, 1)[None, :length] for t in (k, v))
                found.append(attend(row[None, None], keys, values, False, self.window, self.cap)[0])
            return torch.cat(found)

    module.BatchDecodeWithPagedKVCacheWrapper = BatchDecodeWithPagedKVCacheWrapper
    return module
