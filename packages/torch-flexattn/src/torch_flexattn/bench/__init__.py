"""Attention of this package beside PyTorch's, on one machine: suites, peers, the race between them."""
