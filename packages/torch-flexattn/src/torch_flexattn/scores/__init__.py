"""Score modifications: factories that return a :class:`~torch_flexattn.ScoreMod`; ``then`` puts one after the other.

``s`` is the scaled product of query ``i`` and key ``j`` in head ``h`` of sequence ``b``. Tensors are captured as they
are: gradients reach them. Tables made from numbers lie on PyTorch's default device, and ``mod.to(device)`` moves them.
"""

from .bias import add_mask, graphormer, pair_bias, relative_bias, swin_bias, t5_bias, t5_buckets
from .distance import alibi, alibi_slopes, distance_decay, fire, kerple, sandwich
from .scale import logit_scale, softcap, temperature

__all__ = [
    "add_mask",
    "alibi",
    "alibi_slopes",
    "distance_decay",
    "fire",
    "graphormer",
    "kerple",
    "logit_scale",
    "pair_bias",
    "relative_bias",
    "sandwich",
    "softcap",
    "swin_bias",
    "t5_bias",
    "t5_buckets",
    "temperature",
]
