"""CPU kernels: SpMM as a sum over bags (FBGEMM), SDDMM as sampled matrix products."""
