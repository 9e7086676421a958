"""Random graphs of exact size, made by whole-tensor operations on any device.

Every generator draws from its own ``torch.Generator``: the same seed gives the same graph on the same kind of device
(a CPU and a GPU draw different numbers). No self loops, no duplicates; edges are sorted by target, then source.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..graph_arguments import check_count, check_finite, is_count
from .graph_data import GraphData
from .sampling import both_ways, distinct, generator, half, subset
from .undirected import from_keys

Device = torch.device | str


def rmat(
    num_nodes: int,
    num_edges: int,
    a: float = 0.57,
    b: float = 0.19,
    c: float = 0.19,
    d: float = 0.05,
    *,
    symmetric: bool = False,
    seed: int = 0,
    device: Device = "cpu",
) -> GraphData:
    """Recursive-matrix graph (Chakrabarti, Zhan and Faloutsos, SDM 2004): skewed, with blocks inside blocks.

    Args:
        num_nodes: any number; the recursion runs on the next power of two and rejects the rest.
        num_edges: directed entries (an odd one is dropped when ``symmetric``).
        a, b, c, d: chances of the four quadrants, summing to 1.
        symmetric: give both directions of each edge.
        seed: of the draw.
        device: where to draw and return.

    Raises:
        TypeError: a size, a seed or a share that is no number.
        ValueError: chances that do not sum to 1, or more edges than the model finds.

    Example:
        >>> rmat(100, 500)
        GraphData(rmat: 100 nodes, 500 edges)
    """
    for name, chance in (("a", a), ("b", b), ("c", c), ("d", d)):
        check_finite(name, chance)
    if min(a, b, c, d) < 0 or abs(a + b + c + d - 1) > 1e-6:
        raise ValueError(f"a, b, c, d must be chances that sum to 1, got {(a, b, c, d)}")
    pairs = half(num_edges, num_nodes)
    rng = generator(seed, device)
    levels = max(num_nodes - 1, 0).bit_length()

    def draw(count: int) -> Tensor:
        source = torch.zeros(count, dtype=torch.int64, device=device)
        target = torch.zeros_like(source)
        for _ in range(levels):
            u = torch.rand(count, generator=rng, device=device)
            source = 2 * source + (u >= a + b)
            target = 2 * target + (((u >= a) & (u < a + b)) | (u >= a + b + c))
        if symmetric:
            source, target = torch.minimum(source, target), torch.maximum(source, target)
        valid = (source != target) & (source < num_nodes) & (target < num_nodes)
        return (target * num_nodes + source)[valid]

    edge_index = from_keys(distinct(draw, pairs if symmetric else num_edges, rng), num_nodes)
    if symmetric:
        edge_index = both_ways(edge_index[0], edge_index[1], num_nodes)
    return GraphData(edge_index=edge_index, num_nodes=num_nodes, name="rmat")


def power_law(
    num_nodes: int,
    num_edges: int,
    exponent: float = 2.5,
    *,
    max_degree: int | None = None,
    seed: int = 0,
    device: Device = "cpu",
) -> GraphData:
    """Symmetric graph whose degrees follow a power law (Chung and Lu, 2002), node numbers shuffled.

    Args:
        num_nodes: ``N``.
        num_edges: directed entries; an odd one is dropped.
        exponent: of the degree distribution, above 2.
        max_degree: expected degree of the largest hub, above the mean degree; default: what the law gives.
        seed: of the draw.
        device: where to draw and return.

    Raises:
        TypeError: a size, a seed or a share that is no number.
        ValueError: ``exponent`` ≤ 2, or ``max_degree`` outside (mean degree, ``num_nodes``).

    Example:
        >>> power_law(100, 600, max_degree=40)
        GraphData(power_law: 100 nodes, 600 edges)
    """
    check_finite("exponent", exponent)
    if max_degree is not None:
        check_finite("max_degree", max_degree)
    if exponent <= 2:
        raise ValueError(f"exponent must be above 2 (a finite mean degree), got {exponent}")
    pairs = half(num_edges, num_nodes)
    mean = num_edges / max(num_nodes, 1)
    if max_degree is not None and not mean < max_degree < num_nodes:
        raise ValueError(f"max_degree must lie between the mean {mean:.1f} and {num_nodes}, got {max_degree}")
    rng = generator(seed, device)
    shift, power = _law(num_nodes, num_edges, exponent, max_degree)
    low, high = shift**power, (num_nodes + shift) ** power

    def node(count: int) -> Tensor:
        u = torch.rand(count, generator=rng, device=device, dtype=torch.float64)
        return ((low + u * (high - low)) ** (1 / power) - shift).long().clamp_(0, num_nodes - 1)

    def draw(count: int) -> Tensor:
        first, second = node(count), node(count)
        key = torch.minimum(first, second) * num_nodes + torch.maximum(first, second)
        return key[first != second]

    key = distinct(draw, pairs, rng)
    shuffled = torch.randperm(num_nodes, generator=rng, device=device)
    second, first = from_keys(key, num_nodes)
    edge_index = both_ways(shuffled[first], shuffled[second], num_nodes)
    return GraphData(edge_index=edge_index, num_nodes=num_nodes, name="power_law")


def _law(num_nodes: int, num_edges: int, exponent: float, max_degree: int | None) -> tuple[float, float]:
    """``(shift, power)`` of node weights (i + shift)^(power − 1); a larger shift lowers the largest hub."""
    power = 1 - 1 / (exponent - 1)
    low, high = 1e-6, 1e12
    if max_degree is None:
        return low, power
    for _ in range(100):  # bisection on a logarithmic scale
        shift = (low * high) ** 0.5
        share = ((1 + shift) ** power - shift**power) / ((num_nodes + shift) ** power - shift**power)
        low, high = (shift, high) if num_edges * share > max_degree else (low, shift)
        if high / low < 1.0001:
            break
    return high, power


def sbm(blocks: Sequence[int], p_in: float, p_out: float, *, seed: int = 0, device: Device = "cpu") -> GraphData:
    """Symmetric stochastic block model (Holland et al., 1983) with exact edge counts; ``y`` is the block.

    Args:
        blocks: nodes of each block; nodes are numbered block after block.
        p_in: share of the pairs inside blocks that are joined.
        p_out: share of the pairs between blocks that are joined.
        seed: of the draw.
        device: where to draw and return.

    Raises:
        TypeError: a size, a seed or a share that is no number.
        ValueError: a share outside [0, 1], or a block below 1.

    Example:
        >>> sbm([50, 50], 0.2, 0.01)
        GraphData(sbm: 100 nodes, 1030 edges)
    """
    if isinstance(blocks, str) or not isinstance(blocks, Sequence) or not all(map(is_count, blocks)):
        raise TypeError(f"blocks must be a list of sizes, got {blocks!r}")
    for name, share in (("p_in", p_in), ("p_out", p_out)):
        check_finite(name, share)
        if not 0 <= share <= 1:
            raise ValueError(f"{name} must lie in [0, 1], got {share}")
    if min(blocks, default=0) < 1:
        raise ValueError(f"blocks must be sizes of at least 1, got {list(blocks)}")
    rng = generator(seed, device)
    sizes = torch.tensor(list(blocks), device=device)
    num_nodes = int(sizes.sum())
    block = torch.arange(len(blocks), device=device).repeat_interleave(sizes)
    end = sizes.cumsum(0)[block]
    nodes = torch.arange(num_nodes, device=device)
    inside = _partners(nodes + 1, end - nodes - 1, p_in, rng)
    across = _partners(end, num_nodes - end, p_out, rng)
    first, second = torch.cat([inside, across], dim=1)
    edge_index = both_ways(first, second, num_nodes)
    return GraphData(edge_index=edge_index, num_nodes=num_nodes, name="sbm", y=block)


def _partners(first: Tensor, count: Tensor, share: float, rng: torch.Generator) -> Tensor:
    """``[2, pairs]``: a share of all pairs (u, v) where v runs over ``first[u] … first[u] + count[u] − 1``."""
    start = torch.nn.functional.pad(count.cumsum(0), (1, 0))
    total = int(start[-1])
    chosen = subset(total, round(share * total), rng)
    node = torch.searchsorted(start, chosen, right=True) - 1
    return torch.stack([node, first[node] + chosen - start[node]])


def grid_road(num_nodes: int, num_edges: int, *, seed: int = 0, device: Device = "cpu") -> GraphData:
    """Symmetric road-like graph: a square grid in row order with some streets missing; degrees 0 to 4.

    Args:
        num_nodes: ``N``; the last grid row may be short.
        num_edges: directed entries kept; an odd one is dropped.
        seed: of the draw.
        device: where to draw and return.

    Raises:
        TypeError: a size, a seed or a share that is no number.
        ValueError: more edges than the grid has.

    Example:
        >>> grid_road(100, 280)
        GraphData(grid_road: 100 nodes, 280 edges)
    """
    check_count("num_nodes", num_nodes, least=0)
    if not is_count(num_edges):
        raise TypeError(f"num_edges must be an integer, got {num_edges!r}")
    rng = generator(seed, device)
    width = max(round(num_nodes**0.5), 1)
    nodes = torch.arange(num_nodes, device=device)
    right = nodes[((nodes + 1) % width != 0) & (nodes + 1 < num_nodes)]
    down = nodes[nodes + width < num_nodes]
    first, second = torch.cat([right, down]), torch.cat([right + 1, down + width])
    if num_edges < 0 or num_edges > 2 * first.shape[0]:
        raise ValueError(f"num_edges must lie in [0, {2 * first.shape[0]}] for this grid, got {num_edges}")
    kept = torch.randperm(first.shape[0], generator=rng, device=device)[: num_edges // 2]
    edge_index = both_ways(first[kept], second[kept], num_nodes)
    return GraphData(edge_index=edge_index, num_nodes=num_nodes, name="grid_road")


def molecule_batch(graphs: int, nodes: float, degree: float, *, seed: int = 0, device: Device = "cpu") -> GraphData:
    """Batch of small connected graphs: each a branching chain with rings closed between nodes near each other.

    Args:
        graphs: number of graphs.
        nodes: mean nodes of a graph, at least 2; sizes vary by half of it either way.
        degree: mean degree, at least that of a tree.
        seed: of the draw.
        device: where to draw and return.

    Returns:
        :class:`GraphData` with ``batch``, ``round(graphs · nodes)`` nodes and ``degree`` times as many entries,
        rounded down to an even number.

    Raises:
        TypeError: a size, a seed or a share that is no number.
        ValueError: sizes below those bounds, or a degree too large for so small graphs.

    Example:
        >>> molecule_batch(10, 20, 2.2)
        GraphData(molecule_batch: 10 graphs, 200 nodes, 440 edges)
    """
    if not is_count(graphs):
        raise TypeError(f"graphs must be an integer, got {graphs!r}")
    check_finite("nodes", nodes)
    check_finite("degree", degree)
    if graphs < 1 or nodes < 2:
        raise ValueError(f"graphs must be at least 1 and nodes at least 2, got {graphs} and {nodes}")
    rng = generator(seed, device)
    num_nodes = round(graphs * nodes)
    pairs = round(num_nodes * degree) // 2
    closures = pairs - (num_nodes - graphs)
    if closures < 0:
        raise ValueError(f"degree must be at least {2 * (1 - graphs / num_nodes):.4f} (trees), got {degree}")
    weight = torch.randint(512, 1537, (graphs,), generator=rng, device=device)  # integers: their sums are exact
    spare = weight.cumsum(0) * (num_nodes - graphs) // weight.sum()  # nodes beyond one a graph
    size = torch.nn.functional.pad(spare, (1, 0)).diff() + 1
    batch = torch.arange(graphs, device=device).repeat_interleave(size)
    start = (size.cumsum(0) - size)[batch]
    place = torch.arange(num_nodes, device=device) - start
    back = 1 + (3 * torch.rand(num_nodes, generator=rng, device=device).square()).long().clamp_(max=2)
    parent = start + place - torch.minimum(back, place)
    reach = max(6, 2 * -(-closures // num_nodes) + 2)

    def draw(count: int) -> Tensor:
        node = torch.randint(num_nodes, (count,), generator=rng, device=device)
        other = node - torch.randint(2, reach + 1, (count,), generator=rng, device=device)
        valid = (other >= start[node]) & (other != parent[node])
        return (other * num_nodes + node)[valid]

    rings = from_keys(distinct(draw, closures, rng), num_nodes)
    child = (place > 0).nonzero().squeeze(1)
    first, second = torch.cat([rings, torch.stack([child, parent[child]])], dim=1)
    edge_index = both_ways(first, second, num_nodes)
    return GraphData(edge_index=edge_index, num_nodes=num_nodes, name="molecule_batch", batch=batch)
