"""One request's life: admit, submit, read, extend, finish. The only caller of admission and dispatch; api and realtime both stand on it.

| you want | you call |
| --- | --- |
| this process's generations | `service()`, between `service().open()` and `close()` (the ASGI lifespan does both) |
| to generate | `await service().start(request)`; then `events()`, and `abort()` if the reader leaves |
| to go on reading a response | `await service().attach(request_id, digest=…)` |
"""

from django.conf import settings
from redis.asyncio import BlockingConnectionPool, Redis

from gateway.admission.control import AdmissionControl
from gateway.generation.errors import AdmissionRefused, GenerationError, Invalid, ResponseNotFound, Unavailable
from gateway.generation.running import Generation, Patience
from gateway.generation.service import Generations

__all__ = [
    "AdmissionRefused",
    "Generation",
    "GenerationError",
    "Generations",
    "Invalid",
    "Patience",
    "ResponseNotFound",
    "Unavailable",
    "service",
]

_MAX_CONNECTIONS = 64

_service: Generations | None = None


def service() -> Generations:
    """The generations of this process."""
    global _service  # noqa: PLW0603 - one to a process, as its event loop is
    if _service is None:
        pool = BlockingConnectionPool.from_url(settings.REDIS_URL, max_connections=_MAX_CONNECTIONS, timeout=5, socket_timeout=5)
        redis = Redis(connection_pool=pool)
        admissions = AdmissionControl(redis)
        _service = Generations(redis, admissions, secret=settings.CONFIGURATION.worker_secret)
    return _service
