"""Read the pickles of the Planetoid files without trusting them.

A pickle may name any callable of any installed module and have it called. The Planetoid files need six names; this
reader resolves those six and refuses the rest, by exact name, since whole modules (``numpy`` too) hold functions that
run code. SciPy's matrix class, whose old module path newer versions drop, is read as bare arrays: no SciPy needed.
"""

from __future__ import annotations

import collections
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from .csr_arrays import CsrArrays


class _PickledCsr:
    """Takes the state that SciPy's ``csr_matrix`` left in a pickle."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        shape = state["_shape"] if "_shape" in state else state["shape"]
        rows, columns = (int(n) for n in shape)
        self.arrays = CsrArrays(state["data"], state["indices"], state["indptr"], (rows, columns))


_RECONSTRUCT = np.empty(0).__reduce__()[0]
_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("collections", "defaultdict"): collections.defaultdict,
    ("__builtin__", "list"): list,
    ("builtins", "list"): list,
    ("scipy.sparse.csr", "csr_matrix"): _PickledCsr,
    ("scipy.sparse._csr", "csr_matrix"): _PickledCsr,
    ("scipy.sparse", "csr_matrix"): _PickledCsr,
}


_BROKEN = (EOFError, ValueError, TypeError, AttributeError, LookupError, OverflowError)
"""What unpickling raises beside ``UnpicklingError`` when bytes are missing or wrong."""


class _RestrictedUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"the pickle names {module}.{name}, which a data file does not need") from None


def load_arrays(path: str | Path) -> Any:
    """Load a pickle that holds arrays, lists, dicts, numbers and SciPy CSR matrices only.

    Args:
        path: a pickle of Python 2 or 3.

    Returns:
        The object; a SciPy CSR matrix arrives as :class:`CsrArrays`.

    Raises:
        pickle.UnpicklingError: when the file names anything else, and nothing of it has run then; or when it is
            broken: no pickle, or cut short.
    """
    with open(path, "rb") as file:
        try:
            loaded = _RestrictedUnpickler(file, encoding="latin1").load()
        except pickle.UnpicklingError as error:
            raise pickle.UnpicklingError(f"{path}: {error}") from error
        except _BROKEN as error:
            raise pickle.UnpicklingError(f"{path} is no pickle of arrays, or is cut short: {error!r}") from error
    return loaded.arrays if isinstance(loaded, _PickledCsr) else loaded
