"""What a mod may write instead of what no program has."""

from __future__ import annotations

RANDOM = ("rand", "bernoulli", "dropout", "native_dropout", "exponential_", "uniform_", "normal", "empty_like")
OF_SEVERAL = (
    "sum", "mean", "prod", "amax", "amin", "max", "min", "argmax", "argmin", "any", "all", "cumsum", "cumprod", "sort",
    "argsort", "topk", "softmax", "_softmax", "log_softmax", "_log_softmax", "logsumexp", "norm", "linalg_vector_norm",
    "var", "std", "matmul", "mm", "bmm", "mv", "dot", "addmm", "linear", "convolution", "stack", "cat", "arange",
)  # fmt: skip
ORDER = ("permute", "transpose", "t", "numpy_T", "unsqueeze", "squeeze", "expand", "flatten", "reshape", "flip", "roll")
NEAREST = {
    "log_sigmoid_forward": "-torch.nn.functional.softplus(-x)",
    "logit": "torch.log(x / (1 - x))",
    "hypot": "(a * a + b * b).sqrt()",
    "xlogy": "torch.where(a == 0, 0.0, a * torch.log(b))",
    "sinc": "torch.where(x == 0, 1.0, torch.sin(x) / x)",
    "heaviside": "torch.where(x > 0, 1.0, 0.0)",
    "erfc": "1 - torch.erf(x)",
    "asinh": "torch.log(x + torch.sqrt(x * x + 1))",
    "acosh": "torch.log(x + torch.sqrt(x * x - 1))",
    "atanh": "0.5 * torch.log((1 + x) / (1 - x))",
    "softshrink": "torch.sign(x) * torch.clamp(x.abs() - lambd, min=0)",
    "hardshrink": "torch.where(x.abs() > lambd, x, 0.0)",
    "copysign": "torch.where(b < 0, -a.abs(), a.abs())",
    "gather": "t[i, j]",
    "index_select": "t[i]",
    "take": "t[i]",
    "embedding": "table[i, d], one number at a time",
    "one_hot": "i == n",
}


def remedy(name: str) -> str:
    """What to do instead, as the end of a message; empty where nothing is known.

    Args:
        name: of PyTorch's operation.

    Example:
        >>> remedy("hypot")
        ': write (a * a + b * b).sqrt()'
    """
    if name.startswith(RANDOM):
        return ": draw random numbers outside and capture them, or use dropout_p"
    if name in NEAREST:
        return f": write {NEAREST[name]}"
    if name in OF_SEVERAL:
        return ": what is made of several numbers is computed once outside, and the result captured"
    if name in ORDER:
        return ": index a captured tensor as it is, all dimensions in their order, or reshape it outside"
    if name.endswith("_") and not name.endswith("__"):
        return ": it writes in place, use what returns a new value"
    return ": compute it outside for every index that there is and capture the table, or write it in what is there"
