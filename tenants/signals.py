"""What the domain tells whoever listens."""

from django.dispatch import Signal

access_changed = Signal()
"""Sent after commit when what admission knows has changed. `changes`: tuple of (kind, UUID), kind "tenant", "project" or "key"."""
