"""Graphs to run on: loaders for published sets, generators of stand-ins, one type for all of them."""

from .catalogue import NAMES, load
from .digits import digits
from .edge_list import edge_list
from .generators import grid_road, molecule_batch, power_law, rmat, sbm
from .graph_data import GraphData
from .locate import Source, locate
from .mtx import mtx
from .nci import nci
from .npz import npz
from .planetoid import planetoid
from .presets import PRESETS, Preset, generate
from .tu import tu
from .undirected import undirected

__all__ = [
    "NAMES",
    "PRESETS",
    "GraphData",
    "Preset",
    "Source",
    "digits",
    "edge_list",
    "generate",
    "grid_road",
    "load",
    "locate",
    "molecule_batch",
    "mtx",
    "nci",
    "npz",
    "planetoid",
    "power_law",
    "rmat",
    "sbm",
    "tu",
    "undirected",
]
