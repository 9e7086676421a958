"""Kernels from source to the device: compiled by Triton once, kept on disk, launched through the CUDA driver.

A process that finds its kernels on disk imports no compiler, and a launch costs what filling in its pointers costs.
"""
