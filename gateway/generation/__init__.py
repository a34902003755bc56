"""One request's life: admit, submit, read, extend, finish. The only caller of admission and dispatch; api and realtime both stand on it.

| you want | you call |
| --- | --- |
| this process's generations | `service()`, between `service().open()` and `close()` (the ASGI lifespan does both) |
| to generate | `await service().start(request)`; then `events()`, and `abort()` if the reader leaves |
| to go on reading a response | `await service().attach(request_id, digest=…)` |
"""

from django.conf import settings
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError

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
    "connect",
    "service",
]

_MAX_CONNECTIONS = 64

_service: Generations | None = None


def connect(url: str) -> Redis:
    """A pool of connections to Redis. After Redis was restarted every idle one is dead: what meets it is sent again, once, on a new one.

    So whatever is asked through it has to bear being asked twice.
    """
    again = Retry(NoBackoff(), 1, supported_errors=(RedisConnectionError,))
    pool = BlockingConnectionPool.from_url(url, max_connections=_MAX_CONNECTIONS, timeout=5, socket_timeout=5, retry=again)
    return Redis.from_pool(pool)


def service() -> Generations:
    """The generations of this process."""
    global _service  # noqa: PLW0603 - one to a process, as its event loop is
    if _service is None:
        redis = connect(settings.REDIS_URL)
        admissions = AdmissionControl(redis)
        _service = Generations(redis, admissions, secret=settings.CONFIGURATION.worker_secret)
    return _service
