"""torch-tcgnn installed alone: it imports from its wheel, and its main op gives the right answer and gradient.

`nox -s isolated` runs this file, with the wheel and what it requires and nothing else.
"""

from pathlib import Path


def main() -> None:
    import torch
    import torch_tcgnn as tcg

    checkout = Path(__file__).resolve().parents[2] / "packages"
    assert checkout not in Path(tcg.__file__).resolve().parents, f"imported from the checkout: {tcg.__file__}"
    assert Path(tcg.__file__).with_name("py.typed").exists()

    edge_index = torch.tensor([[0, 1, 1, 2], [1, 0, 1, 1]])
    graph = tcg.TCGraph.from_edge_index(edge_index, num_nodes=3)
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], requires_grad=True)
    out = tcg.spmm(graph, x, torch.tensor([0.5, 1.0, 2.0, 1.0]))
    assert out.tolist() == [[3.0, 4.0], [11.5, 15.0], [0.0, 0.0]], out
    out.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [[0.5, 0.5], [3.0, 3.0], [1.0, 1.0]], x.grad
    print(f"torch-tcgnn {tcg.__version__} works alone beside torch {torch.__version__}")


if __name__ == "__main__":
    main()
