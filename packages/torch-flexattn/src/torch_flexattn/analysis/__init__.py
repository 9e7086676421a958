"""Which blocks of a mask are visible in full, in part or not at all, without looking at every position.

Parts of a program that depend on one index only are evaluated once for all its values (``pyramid``); what mixes both is
run on boxes of positions, with ranges in place of numbers (``interval``, ``boxes``). Boxes that stay open are split
(``quadtree``); blocks that stay open are looked at position by position (``exact_tiles``).
"""
