"""One process of a training run of an accelerated PyG model; `test_distributed.py` starts several.

``python train_distributed.py RANK WORLD FOLDER``: with ``WORLD`` 2 each rank trains on its own graph under
``DistributedDataParallel``; with ``WORLD`` 1 one process trains on both, the mean of their losses. Saves the gradients
of the first step and the parameters after the last.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch_tcgnn as tcg
from torch import Tensor, nn
from torch_tcgnn.accelerate.layers import Accelerated

NODES, FEATURES, STEPS = 40, 8, 3


class Model(nn.Module):
    """GCN and GAT layers of PyG, and a branch that some steps leave out."""

    def __init__(self) -> None:
        from torch_geometric.nn import GATConv, GCNConv

        super().__init__()
        self.first, self.second = GCNConv(FEATURES, 16), GATConv(16, 4, heads=2)
        self.branch = GCNConv(16, 8)

    def forward(self, x: Tensor, edge_index: Tensor, use_branch: bool) -> Tensor:
        h = self.first(x, edge_index).relu()
        out = self.second(h, edge_index)
        return out + self.branch(h, edge_index) if use_branch else out


def graph(rank: int) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(rank)
    return torch.randn(NODES, FEATURES, generator=rng), torch.randint(0, NODES, (2, 150 + 40 * rank), generator=rng)


def train(rank: int, world: int, find_unused: bool) -> dict[str, list[Tensor]]:
    torch.manual_seed(0)
    model = tcg.accelerate(Model())
    assert all(isinstance(layer, Accelerated) for layer in model.children())
    call = nn.parallel.DistributedDataParallel(model, find_unused_parameters=find_unused) if world > 1 else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    graphs = [graph(rank)] if world > 1 else [graph(0), graph(1)]
    gradients = []
    for step in range(STEPS):
        use_branch = not find_unused or step == 1  # gradients of unused parameters stay None, or zero
        optimizer.zero_grad()
        losses = [call(x, edge_index, use_branch).square().mean() for x, edge_index in graphs]
        torch.stack(losses).mean().backward()
        if step == 0:
            gradients = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in model.parameters()]
        optimizer.step()
    return {"gradients": gradients, "parameters": [p.detach().clone() for p in model.parameters()]}


def main(rank: int, world: int, folder: Path) -> None:
    if world > 1:
        torch.set_num_threads(1)
        meeting = f"file://{folder / 'meeting'}"
        torch.distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=world)
    found = {str(unused): train(rank, world, unused) for unused in (False, True)}
    torch.save(found, folder / f"{world}-{rank}.pt")
    if world > 1:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
