"""Layers with the names, arguments, parameters and results of PyG 2.8, on translated graphs."""

from .agnn import AGNNConv
from .gat import GATConv
from .gatv2 import GATv2Conv
from .gcn import GCNConv
from .gin import GINConv
from .gine import GINEConv
from .graph_conv import GraphConv
from .sage import SAGEConv
from .sg import SGConv
from .transformer import TransformerConv

__all__ = [
    "AGNNConv",
    "GATConv",
    "GATv2Conv",
    "GCNConv",
    "GINConv",
    "GINEConv",
    "GraphConv",
    "SAGEConv",
    "SGConv",
    "TransformerConv",
]
