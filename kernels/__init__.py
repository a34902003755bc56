"""Device maths. Knows only tensors."""
