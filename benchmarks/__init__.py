"""Ours beside named peers: same inputs, one process, alternating timings, checked results.

Run ``python -m benchmarks torch-tcgnn --out results.json`` from a checkout; nothing needs to be installed beside torch.
"""
