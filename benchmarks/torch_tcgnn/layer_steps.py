"""One training step of a layer, output and all gradients, and the same step in float64 from the layer's formula.

The formulas take the targets and sources of all edges, the features, and the parameters in the order of their names in
PyTorch Geometric's ``state_dict``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn.functional import linear, normalize
from torch_tcgnn import reference

from benchmarks.case import Run, Runner
from benchmarks.torch_tcgnn.tasks import Task

Formula = Callable[..., Tensor]

__all__ = [
    "Formula",
    "Kind",
    "Layer",
    "agnn",
    "draw_layer",
    "gat",
    "gatv2",
    "gcn",
    "hidden_off_the_kink",
    "off_the_kink",
    "reference_step",
    "sage",
    "step",
    "transformer",
]


@dataclass(frozen=True)
class Layer:
    """A task with the parameters of a layer, under PyG's names, and a gradient of the output."""

    task: Task
    parameters: dict[str, Tensor]
    grad: Tensor


def _as_drawn(layer: Layer) -> Layer:
    return layer


@dataclass(frozen=True)
class Kind:
    """A layer: shapes of its parameters, our module, PyG's contenders, its formula.

    Attributes:
        dims: input and output width.
        label: the dimensions as names of cases have them.
        modules: ``modules(namespace)`` gives the layer of our or PyG's ``nn``.
        further: other ways of running PyG's layer.
        loops: whether the layer adds self loops.
        adjust: what to do to the drawn inputs, where float32 and float64 may take different branches on them.
        kernel: which kernel ours runs, where the package can say.
    """

    dims: tuple[int, int]
    label: str
    shapes: Mapping[str, tuple[int, ...]]
    modules: Callable[[object], torch.nn.Module]
    formula: Formula
    further: Mapping[str, Runner] = field(default_factory=dict)
    loops: bool = True
    adjust: Callable[[Layer], Layer] = _as_drawn
    kernel: str | Callable[[Layer], str] = ""

    def draw(self, task: Task) -> Layer:
        """Parameters, features and a gradient from a fixed seed."""
        return self.adjust(draw_layer(task, self.shapes, self.dims[1]))


def draw_layer(task: Task, shapes: Mapping[str, tuple[int, ...]], out_dim: int) -> Layer:
    """Parameters of these shapes and a gradient ``[N, out_dim]``, from a fixed seed."""
    device = task.x.device
    random = torch.Generator(device).manual_seed(1)
    parameters = {
        name: torch.randn(shape, generator=random, device=device) / shape[-1] ** 0.5 for name, shape in shapes.items()
    }
    return Layer(task, parameters, torch.randn(task.num_nodes, out_dim, generator=random, device=device))


def off_the_kink(layer: Layer) -> Layer:
    """A GAT layer whose logits all lie far from 0, on both sides.

    Among millions of random logits some are so small that float32 and float64 differ in their sign, take different
    slopes of LeakyReLU there, and give different gradients; both are right. Features are therefore one vector or its
    opposite, with a little noise, and the source's logit outweighs the target's.
    """
    task, parameters = layer.task, dict(layer.parameters)
    random = torch.Generator(task.x.device).manual_seed(2)
    nodes, width = task.x.shape
    direction = torch.randn(width, generator=random, device=task.x.device)
    sign = torch.randint(0, 2, (nodes, 1), generator=random, device=task.x.device) * 2 - 1
    heads, dim = parameters["att_src"].shape[1:]
    hidden = (parameters["lin.weight"] @ direction).view(1, heads, dim)
    aligned = hidden / hidden.norm(dim=-1, keepdim=True)
    other = parameters["att_dst"] / parameters["att_dst"].norm(dim=-1, keepdim=True)
    parameters |= {"att_src": aligned, "att_dst": 0.3 * other}
    return Layer(replace(task, x=sign * direction + 0.1 * task.x), parameters, layer.grad)


def hidden_off_the_kink(layer: Layer) -> Layer:
    """A GATv2 layer whose hidden features all lie far from 0, on both sides; LeakyReLU is taken of each of them.

    As in `off_the_kink`, but every channel of a source is near 1 or -1, and outweighs the target's, near 0.3 or -0.3.
    """
    task, parameters = layer.task, dict(layer.parameters)
    random = torch.Generator(task.x.device).manual_seed(2)
    nodes, width = task.x.shape

    def signs(*shape: int) -> Tensor:
        return torch.randint(0, 2, shape, generator=random, device=task.x.device) * 2.0 - 1

    direction = signs(width)
    for side, size in (("l", 1.0), ("r", 0.3)):
        weight = parameters[f"lin_{side}.weight"]
        missing = size * signs(weight.shape[0]) - weight @ direction
        parameters[f"lin_{side}.weight"] = weight + missing.outer(direction) / width
        parameters[f"lin_{side}.bias"] = 0.1 * parameters[f"lin_{side}.bias"]
    return Layer(replace(task, x=signs(nodes, 1) * direction + 0.05 * task.x), parameters, layer.grad)


def step(layer: Layer, conv: torch.nn.Module, adjacency: object) -> Run:
    """A run of ``conv``: the output, and the gradients of the features and of every parameter."""
    conv.to(layer.task.x.device).load_state_dict(layer.parameters)
    named = dict(conv.named_parameters())
    x = layer.task.x.clone().requires_grad_()
    leaves = (x, *(named[name] for name in layer.parameters))

    def run() -> tuple[Tensor, ...]:
        out = conv(x, adjacency)
        return out, *torch.autograd.grad(out, leaves, layer.grad)

    return run


def reference_step(formula: Formula, loops: bool, layer: Layer) -> tuple[Tensor, ...]:
    """Autograd in float64 through `formula`, on the graph with self loops or without."""
    source, target = layer.task.edge_index
    if loops:
        nodes = torch.arange(layer.task.num_nodes, device=layer.task.x.device)
        source, target = torch.cat([source, nodes]), torch.cat([target, nodes])
    x = layer.task.x.double().requires_grad_()
    parameters = [value.double().requires_grad_() for value in layer.parameters.values()]
    out = formula(target, source, x, *parameters)
    return out, *torch.autograd.grad(out, (x, *parameters), layer.grad.double())


def gcn(row: Tensor, col: Tensor, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Kipf & Welling 2017, equation 2."""
    scale = torch.bincount(row, minlength=x.shape[0]).double().rsqrt()
    return reference.spmm(row, col, x @ weight.t(), scale[row] * scale[col], x.shape[0]) + bias


def gat(row: Tensor, col: Tensor, x: Tensor, weight: Tensor, att_src: Tensor, att_dst: Tensor, bias: Tensor) -> Tensor:
    """Veličković et al. 2018, equations 3 to 5, heads concatenated."""
    hidden = (x @ weight.t()).view(x.shape[0], att_src.shape[1], -1)
    source, target = (hidden * att_src).sum(-1), (hidden * att_dst).sum(-1)
    logits = reference.additive_logits(row, col, source, target, None, 0.2)
    return reference.attention(row, col, hidden, logits, x.shape[0]).flatten(1) + bias


def gatv2(
    row: Tensor,
    col: Tensor,
    x: Tensor,
    att: Tensor,
    bias: Tensor,
    source: Tensor,
    source_bias: Tensor,
    target: Tensor,
    target_bias: Tensor,
) -> Tensor:
    """Brody et al. 2022, equation 7, heads concatenated."""
    shape = (x.shape[0], *att.shape[1:])
    left, right = linear(x, source, source_bias).view(shape), linear(x, target, target_bias).view(shape)
    logits = reference.gatv2_logits(row, col, left, right, att, None, 0.2)
    return reference.attention(row, col, left, logits, x.shape[0]).flatten(1) + bias


def sage(row: Tensor, col: Tensor, x: Tensor, weight: Tensor, bias: Tensor, root: Tensor) -> Tensor:
    """Hamilton et al. 2017, the mean aggregator, with a map of its own for the node itself."""
    degree = torch.bincount(row, minlength=x.shape[0]).double()
    mean = reference.spmm(row, col, x, 1 / degree[row], x.shape[0])
    return linear(mean, weight, bias) + linear(x, root)


def agnn(row: Tensor, col: Tensor, x: Tensor, beta: Tensor) -> Tensor:
    """Thekumparampil et al. 2018, equation 5."""
    unit = normalize(x, dim=-1).unsqueeze(1)
    logits = reference.dot_logits(row, col, beta * unit, unit, None, 1.0)
    return reference.attention(row, col, x.unsqueeze(1), logits, x.shape[0]).squeeze(1)


def transformer(heads: int) -> Formula:
    """Shi et al. 2021, equations 3 and 4, heads concatenated, with the skip map, without biases."""

    def formula(row: Tensor, col: Tensor, x: Tensor, *weights: Tensor) -> Tensor:
        key, query, value, skip = (x @ weight.t() for weight in weights)
        key, query, value = (mapped.view(x.shape[0], heads, -1) for mapped in (key, query, value))
        logits = reference.dot_logits(row, col, query, key, None, key.shape[-1] ** -0.5)
        return reference.attention(row, col, value, logits, x.shape[0]).flatten(1) + skip

    return formula
