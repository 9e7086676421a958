"""Layers: torch.nn.Modules that attend by ``flex_attention``."""

from .convert import Converted, convert_mha_
from .grouped_query import GroupedQueryAttention
from .kv_cache import KVCache
from .latent import MultiheadLatentAttention
from .multihead import FlexMultiheadAttention
from .native_sparse import NativeSparseAttention
from .neighborhood import NeighborhoodAttention1d, NeighborhoodAttention2d, NeighborhoodAttention3d
from .relative_bias import T5RelativeBias
from .rotary import RopeScaling

__all__ = [
    "Converted",
    "FlexMultiheadAttention",
    "GroupedQueryAttention",
    "KVCache",
    "MultiheadLatentAttention",
    "NativeSparseAttention",
    "NeighborhoodAttention1d",
    "NeighborhoodAttention2d",
    "NeighborhoodAttention3d",
    "RopeScaling",
    "T5RelativeBias",
    "convert_mha_",
]
