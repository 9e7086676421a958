"""How torchtitan calls its attention, as read from its source; what its masks look like."""

from __future__ import annotations

import torch

LAYOUTS = (("q_TNH", "k_TNH", "v_TNH"), ("q_BLNH", "k_BLNH", "v_BLNH"))
"""Tensors of ``FlexAttention.forward``: at commit b5bcd76c66d0acb1a08b176d9639425bc55e0b2a, and in release 0.3.0."""
KEYWORDS = ("attention_masks", "score_mod", "scale", "enable_gqa", "out_transform")
"""What it takes by keyword, at both; further keywords are ignored."""


def positions_of(lengths):
    """The number of each token in its document."""
    return torch.cat([torch.arange(n) for n in lengths])


def packed_documents(positions):
    """A function with the formula of ``get_efficient_causal_mask_mod_for_packed_document``: two reads a query."""
    document = (positions == 0).cumsum(0) - 1
    first = torch.full((len(positions) + 1,), len(positions), dtype=torch.int32, device=positions.device)
    starts = (positions == 0).nonzero()[:, 0]
    first[: len(starts)] = starts  # of one length, however many documents there are
    return lambda b, h, q_idx, kv_idx: kv_idx >= first[document[q_idx]]


def same_document(positions):
    """A function with the formula of ``get_document_mask_mod``."""
    document = (positions == 0).cumsum(0) - 1
    return lambda b, h, q_idx, kv_idx: document[q_idx] == document[kv_idx]


def causal(b, h, q_idx, kv_idx):
    """``get_causal_mask_mod``."""
    return q_idx >= kv_idx
