"""Triton kernels; each module imports triton, so the dispatch imports them at the moment of use.

The row kernels share one shape: a program holds a tile of ``ROWS`` lanes × ``BLOCK_F`` features. Long rows give all
lanes to one row, which walk its entries interleaved and are added at the end; short rows take one lane each and walk
side by side, grouped by length (see ``row_plan``). Every result depends on its own row only and is summed in a fixed
order: no atomics, two runs agree bit for bit, and so do a graph and a batch that contains it.
"""
