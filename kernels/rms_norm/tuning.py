"""Launch sizes by row width. Not yet measured on a GPU: 8 to 16 elements a thread."""


def warps(width: int) -> int:
    """Warps for a row of `width` elements, a power of two."""
    return min(16, max(1, width // 512))
