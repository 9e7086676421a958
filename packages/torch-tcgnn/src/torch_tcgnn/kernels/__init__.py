"""Kernels, one family a file: ``cpu`` (PyTorch's own vectorised loops), ``triton`` and ``cuda`` (C++ through NVRTC)."""
