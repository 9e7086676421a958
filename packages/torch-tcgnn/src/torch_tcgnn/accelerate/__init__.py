"""One-line acceleration of a PyG model: `accelerate`, `restore`, `report`."""

from .report import LayerReport, Report
from .swap import accelerate, report, restore
from .verify import AccelerateError

__all__ = ["AccelerateError", "LayerReport", "Report", "accelerate", "report", "restore"]
