"""What every endpoint under /v1 does first and last."""

from gateway import generation
from gateway.admission.outcomes import Caller, Refused
from gateway.api import errors
from gateway.api.connection import Connection
from gateway.api.errors import model_not_found
from inference.protocol.frames import ModelCard

LARGE_BODY_BYTES = 64 * 1024
"""From here on a key is looked up before the body is worked on; below it, admission alone does it, in its one call."""


async def authenticated(connection: Connection, service: generation.Generations) -> Caller:
    """Whose key it is. Raises ApiError if it isn't valid."""
    caller = await service.authenticate(connection.digest())
    connection.key_checked = True
    if isinstance(caller, Refused):
        raise errors.refused(caller)
    return caller


async def read_body(connection: Connection, service: generation.Generations) -> bytes:
    """The body of a call that presents a key. Only a valid key gets a large body looked at."""
    connection.digest()
    body = await connection.body()
    if len(body) > LARGE_BODY_BYTES:
        await authenticated(connection, service)
    return body


def served(service: generation.Generations, model: str) -> ModelCard:
    """The model's card. Raises ApiError: 404 for an unknown model, 503 while none is served at all."""
    card = service.card(model)
    if card is None:
        if not service.models():
            raise errors.unavailable("No model is being served at the moment.", 2.0)
        raise model_not_found(model)
    return card


def fingerprint(card: ModelCard) -> str:
    """`system_fingerprint` of the answers: changes with whatever may change them."""
    return f"fp_{card.fingerprint[:12]}"
