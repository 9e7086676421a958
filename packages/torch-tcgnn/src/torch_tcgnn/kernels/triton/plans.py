"""The work list of an adjacency that came without one: built at first use, kept as long as its ``rowptr`` lives.

That is a graph of path ``"tc"`` whose operator has no tensor-core kernel, and one that ``torch.compile`` met first.
"""

from __future__ import annotations

from torch.utils.weak import WeakTensorKeyDictionary

from ...adjacency import Adjacency
from ...row_plan import RowPlan, plan_rows
from ...settle import check_not_captured, settle

_PLANS = WeakTensorKeyDictionary()


def plan_of(adjacency: Adjacency) -> RowPlan:
    """The adjacency's own plan, or the one kept for it.

    Raises:
        RuntimeError: there is none yet, and a CUDA graph is being captured (building one asks the device for sizes).
    """
    if adjacency.plan is not None:
        return adjacency.plan
    rowptr = adjacency.rowptr
    plan = _PLANS.get(rowptr)
    if plan is None:
        check_not_captured(rowptr.device)
        plan = plan_rows(rowptr)
        settle(rowptr.device)
        plan = _PLANS.setdefault(rowptr, plan)
    return plan
