"""CUDA C++ kernels, compiled by NVRTC at first use and cached on disk."""
