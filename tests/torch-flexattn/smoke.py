"""torch-flexattn installed alone: it imports from its wheel, and attention gives the right answer and gradients.

`nox -s isolated` runs this file, with the wheel and what it requires and nothing else.
"""

from pathlib import Path


def main() -> None:
    import torch
    import torch_flexattn as tfa

    checkout = Path(__file__).resolve().parents[2] / "packages"
    assert checkout not in Path(tfa.__file__).resolve().parents, f"imported from the checkout: {tfa.__file__}"
    assert Path(tfa.__file__).with_name("py.typed").exists()

    # Equal scores: each query takes the mean of what it sees, two documents of 2 and 3 keys, causal.
    query = torch.zeros(1, 1, 5, 4)
    value = torch.arange(5.0).view(1, 1, 5, 1).requires_grad_()
    mask = tfa.masks.causal() & tfa.masks.document([0, 2, 5])
    out = tfa.flex_attention(query, query, value, block_mask=mask)
    assert torch.allclose(out.flatten(), torch.tensor([0.0, 0.5, 2.0, 2.5, 3.0])), out
    out.sum().backward()
    assert value.grad is not None
    assert torch.allclose(value.grad.flatten(), torch.tensor([3 / 2, 1 / 2, 11 / 6, 5 / 6, 1 / 3])), value.grad

    # A learned table, read by the distance: its gradient counts the pairs of each distance.
    table = torch.zeros(9, requires_grad=True)
    ones = torch.ones(1, 1, 5, 1)
    lse = tfa.flex_attention(query, query, ones, lambda s, b, h, i, j: s + table[i - j + 4], return_lse=True)[1]
    (lse.sum() * 5).backward()
    assert table.grad is not None
    assert torch.allclose(table.grad, torch.tensor([1.0, 2, 3, 4, 5, 4, 3, 2, 1])), table.grad
    print(f"torch-flexattn {tfa.__version__} works alone beside torch {torch.__version__}")


if __name__ == "__main__":
    main()
