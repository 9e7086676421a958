"""One of two processes that train a layer with a learned bias, under PyTorch's own data parallelism; the test
``test_training_wrappers.py`` starts them and reads what they write.

python tests/torch-flexattn/train_in_ranks.py FOLDER RANK
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch_flexattn import FlexAttentionError, create_block_mask, flex_attention, masks

RANKS, LENGTH, HEADS, WIDTH = 2, 20, 2, 8


class Biased(nn.Module):
    """Causal attention with a table of biases by distance."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs = nn.Linear(HEADS * WIDTH, 3 * HEADS * WIDTH)
        self.table = nn.Parameter(torch.linspace(-1, 1, HEADS * LENGTH).view(HEADS, LENGTH))

    def forward(self, x: Tensor) -> Tensor:
        table = self.table
        q, k, v = self.inputs(x).unflatten(-1, (3, HEADS, WIDTH)).permute(2, 0, 3, 1, 4)
        return flex_attention(q, k, v, lambda s, b, h, i, j: s + table[h, (i - j).abs()], masks.causal())


def model() -> Biased:
    """The same on every rank."""
    torch.manual_seed(0)
    return Biased()


def rows() -> Tensor:
    """A batch; each rank has its share."""
    return torch.randn(2 * RANKS, LENGTH, HEADS * WIDTH, generator=torch.Generator().manual_seed(1))


def loss(module: nn.Module, x: Tensor) -> Tensor:
    return module(x).sin().square().mean()


def gradients(module: nn.Module) -> dict[str, Tensor]:
    """By name, whole."""
    found = {}
    for name, parameter in module.named_parameters():
        grad = parameter.grad
        assert grad is not None, name
        found[name.removeprefix("module.")] = grad.full_tensor() if hasattr(grad, "full_tensor") else grad
    return found


def inputs() -> list[Tensor]:
    """Query, key and value of 2 batch entries and 4 heads, 2 of keys; a table of biases by head; sinks."""
    draw = torch.Generator().manual_seed(2)
    shapes = (2, 4, LENGTH, WIDTH), (2, 2, LENGTH, WIDTH), (2, 2, LENGTH, WIDTH), (2, 4, LENGTH), (4,)
    return [torch.randn(shape, generator=draw, dtype=torch.float64).requires_grad_() for shape in shapes]


def options(table: Tensor, sinks: Tensor, kind: str) -> dict[str, Any]:
    """Of a call whose mods depend on batch entry and head; ``kind``: of the mask."""

    def near(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (i - j).abs() < 3 + 4 * b + h

    mask = create_block_mask(near, 2, 4, LENGTH, LENGTH, BLOCK_SIZE=16) if kind == "blocks" else near
    return {
        "score_mod": lambda s, b, h, i, j: s + table[b, h, (i - j).abs()],
        "block_mask": mask,
        "mask_mod": masks.causal() if kind == "two masks" else None,
        "sinks": sinks,
        "kv_lens": torch.tensor([LENGTH, 13]),
        "enable_gqa": True,
    }


KINDS = ("mask", "two masks", "blocks")


def results(q: Any, k: Any, v: Any, leaves: list[Tensor], kind: str) -> list[Tensor]:
    """Output, lse, and gradients of all leaves, whole."""
    table, sinks = leaves[3:]
    out, lse = flex_attention(q, k, v, return_lse=True, **options(table, sinks, kind))
    out, lse = (t.full_tensor() if hasattr(t, "full_tensor") else t for t in (out, lse))
    return [out, lse, *torch.autograd.grad(out.sin().sum() + lse.cos().sum(), leaves)]


def attended(way: str, rank: int) -> dict[str, list[Tensor]]:
    """Attention to tensors that are cut along heads or along the batch."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard

    mesh = init_device_mesh("cpu", (RANKS,))
    found = {}
    for kind in KINDS:
        leaves = inputs()
        cut = [
            DTensor.from_local(t, mesh, [Replicate()], run_check=False).redistribute(
                mesh, [Shard(1 if way == "heads" else 0)]
            )
            for t in leaves[:3]
        ]
        found[kind] = results(*cut, leaves, kind)
    return found


def refusals() -> list[str]:
    """What is said to calls that do not fit."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (RANKS,))
    x = torch.randn(2, 4, LENGTH, WIDTH)
    heads, length = (distribute_tensor(x, mesh, [Shard(d)]) for d in (1, 2))
    whole: DTensor = distribute_tensor(x, mesh, [Replicate()])
    odd = distribute_tensor(x[:, :3], mesh, [Shard(1)])
    calls = [
        lambda: flex_attention(heads, x, x),
        lambda: flex_attention(heads, whole, whole),
        lambda: flex_attention(length, length, length),
        lambda: flex_attention(odd, odd, odd),
        lambda: flex_attention(heads, heads, heads, dropout_p=0.5),
    ]
    said = []
    for call in calls:
        try:
            call()
            said.append("")
        except FlexAttentionError as error:
            said.append(f"{type(error).__name__}: {error}")
    return said


def main(folder: Path, rank: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder / 'meet'}", rank=rank, world_size=RANKS)
    mine = rows().chunk(RANKS)[rank]
    copied = DistributedDataParallel(model())
    loss(copied, mine).backward()
    found: dict[str, Any] = {"ddp": gradients(copied)}
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    cut = fully_shard(model(), mesh=init_device_mesh("cpu", (RANKS,)))
    loss(cut, mine).backward()
    found["fsdp"] = gradients(cut)
    for way in ("heads", "batch"):
        found[way] = attended(way, rank)
    found["refused"] = refusals()
    torch.save(found, folder / f"rank{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
