"""CPU kernels: SpMM as a sum over bags (FBGEMM) or MKL CSR, SDDMM as sampled matrix products."""
