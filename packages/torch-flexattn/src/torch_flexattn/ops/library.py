"""The one ``torch.library`` handle of this package."""

from __future__ import annotations

import torch

NAMESPACE = "torch_flexattn"
LIBRARY = torch.library.Library(NAMESPACE, "DEF")
