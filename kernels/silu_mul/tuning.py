"""Launch sizes. Not yet measured on a GPU: 8 elements a thread."""

WIDTH = 1024
"""Elements of a row that a program works on."""
WARPS = 4
