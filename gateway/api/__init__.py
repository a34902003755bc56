"""The OpenAI-compatible data plane under /v1, and the health probes: plain ASGI and msgspec, no Django, no ORM."""
