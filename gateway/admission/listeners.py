"""Hears of changes in the domain and tells Redis at once; the outbox replays whatever this misses."""


def connect() -> None:
    """Connect to tenants.signals.access_changed. Called once, from GatewayConfig.ready."""
