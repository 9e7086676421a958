"""Stand-ins for the graphs of the papers: the same size and degree shape, not the same graph.

Nodes, directed entries, features and classes are the figures that the papers' tables quote; the largest degrees are
round figures of the order that public descriptions of the sets give. Say "amazon0505-like" of a result, never
"amazon0505". Community structure is not imitated: node numbers of the power-law graphs are shuffled, which is the
hardest case for tensor-core tiles.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch

from ..graph_arguments import check_finite
from .generators import grid_road, molecule_batch, power_law, rmat
from .graph_data import GraphData
from .sampling import generator

Features = Literal["none", "normal"]


@dataclass(frozen=True)
class Preset:
    """Size and shape of a stand-in.

    Attributes:
        num_nodes: nodes at scale 1.
        num_edges: directed entries at scale 1; symmetric graphs drop an odd one.
        num_features: width of the node features.
        num_classes: classes; 0 where the papers give none.
        shape: which generator.
        max_degree: expected degree of the largest hub (power law only).
        graphs: number of graphs (molecules only).

    Example:
        >>> PRESETS["ppi"]
        Preset(num_nodes=56944, num_edges=818716, num_features=50, num_classes=121, shape='power_law', max_degree=700,
               graphs=1)
    """

    num_nodes: int
    num_edges: int
    num_features: int = 0
    num_classes: int = 0
    shape: Literal["power_law", "molecules", "road", "rmat"] = "power_law"
    max_degree: int = 0
    graphs: int = 1


PRESETS: dict[str, Preset] = {
    "ppi": Preset(56_944, 818_716, 50, 121, max_degree=700),
    "OVCAR-8H": Preset(1_890_931, 3_946_402, 66, 2, "molecules", graphs=40_516),
    "Yeast": Preset(1_714_644, 3_636_546, 74, 2, "molecules", graphs=79_601),
    "DD": Preset(334_925, 1_686_092, 89, 2, "molecules", graphs=1_178),
    "YeastH": Preset(3_139_988, 6_487_230, 75, 2, "molecules", graphs=79_601),
    "amazon0505": Preset(410_236, 4_878_875, 96, 22, max_degree=2_800),
    "artist": Preset(50_515, 1_638_396, 100, 12, max_degree=1_500),
    "com-amazon": Preset(334_863, 1_851_744, 96, 22, max_degree=550),
    "soc-BlogCatalog": Preset(88_784, 2_093_195, 128, 39, max_degree=9_400),
    "amazon0601": Preset(403_394, 3_387_388, 96, 22, max_degree=2_800),
    "reddit": Preset(232_965, 114_848_857, 602, 41, max_degree=21_700),
    "protein": Preset(132_534, 79_255_038, max_degree=7_800),
    "roadNet-CA": Preset(1_971_281, 5_533_214, shape="road"),
    "web-BerkStan": Preset(685_230, 7_600_595, shape="rmat"),
    "arxiv": Preset(169_343, 2_315_598, 128, 40, max_degree=13_000),
    "products": Preset(2_449_029, 123_718_280, 100, 47, max_degree=17_500),
}
"""Known stand-ins by the name of the graph they imitate."""


def generate(
    name: str,
    seed: int = 0,
    scale: float = 1.0,
    device: torch.device | str = "cpu",
    *,
    features: Features = "none",
) -> GraphData:
    """Make the stand-in ``"<name>-like"``.

    Args:
        name: a key of :data:`PRESETS`.
        seed: of the draw; the same on the same kind of device gives the same graph.
        scale: factor of nodes and edges alike, so that the mean degree stays.
        device: where to draw and return.
        features: ``"normal"`` adds ``x`` (standard normal) and ``y`` (uniform; one a graph where there is a batch).

    Returns:
        :class:`GraphData`, symmetric except for ``"web-BerkStan"``, which is directed.

    Raises:
        TypeError: ``scale`` that is no number, ``seed`` that is no integer.
        ValueError: unknown ``name`` or ``features``, or a scale that is not positive or too small for the degree.

    Example:
        >>> generate("com-amazon", scale=0.001)
        GraphData(com-amazon-like: 335 nodes, 1852 edges)
    """
    if name not in PRESETS:
        raise ValueError(f"name must be one of {', '.join(PRESETS)}, got {name!r}")
    if features not in get_args(Features):
        raise ValueError(f"features must be one of {', '.join(map(repr, get_args(Features)))}, got {features!r}")
    check_finite("scale", scale)
    if not scale > 0:
        raise ValueError(f"scale must be positive, got {scale}")
    preset = PRESETS[name]
    num_nodes, num_edges = max(round(preset.num_nodes * scale), 2), round(preset.num_edges * scale)
    if num_edges > num_nodes * (num_nodes - 1) // 2:
        raise ValueError(f"scale={scale} leaves {num_nodes} nodes, too few for {num_edges} edges of {name}")
    if preset.shape == "molecules":
        graphs = max(round(preset.graphs * scale), 1)
        data = molecule_batch(graphs, num_nodes / graphs, num_edges / num_nodes, seed=seed, device=device)
    elif preset.shape == "road":
        data = grid_road(num_nodes, num_edges, seed=seed, device=device)
    elif preset.shape == "rmat":
        data = rmat(num_nodes, num_edges, seed=seed, device=device)
    else:
        mean = num_edges / num_nodes
        hub = max(preset.max_degree * scale**0.5, 4 * mean)  # hubs grow like the square root of the graph
        hub = max(min(hub, num_nodes / 2), 1.1 * mean + 1)
        data = power_law(num_nodes, num_edges, max_degree=min(int(hub), num_nodes - 1), seed=seed, device=device)
    data = replace(data, name=f"{name}-like")
    return data if features == "none" else _with_features(data, preset, seed)


def _with_features(data: GraphData, preset: Preset, seed: int) -> GraphData:
    if preset.num_features == 0:
        raise ValueError(f"features must be 'none' for {data.name}: the papers give it no features")
    device = data.edge_index.device
    rng = generator(seed + 1, device)
    labelled = data.num_nodes if data.batch is None else data.num_graphs
    return replace(
        data,
        x=torch.randn(data.num_nodes, preset.num_features, generator=rng, device=device),
        y=torch.randint(preset.num_classes, (labelled,), generator=rng, device=device),
    )
