"""Launch sizes. Not yet measured on a GPU."""

HEADS = 16
"""Heads of one token that a program rotates."""
WARPS = 4
