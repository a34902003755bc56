"""Launch sizes. Not yet measured on a GPU: a head is 64 to 256 elements."""

WARPS = 1
