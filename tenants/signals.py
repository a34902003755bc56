"""What the domain tells whoever listens."""

from django.dispatch import Signal

access_changed = Signal()
"""Sent after commit whenever what admission needs to know has changed. `changes`: tuple of (kind, id), kind "tenant", "project" or "key"."""
