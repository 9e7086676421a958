"""Which tiles of which kernels are the fastest for a call, found by timing them once and kept on disk."""
