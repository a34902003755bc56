"""GET /v1/models and GET /v1/models/{model}"""

import msgspec
from msgspec import Struct

from gateway import generation
from gateway.admission.outcomes import Caller
from gateway.api.connection import Connection
from gateway.api.endpoint import authenticated
from gateway.api.errors import model_not_found
from inference.protocol.frames import ModelCard


class Model(Struct, frozen=True, kw_only=True):
    id: str
    object: str = "model"
    created: int
    owned_by: str = "lockgate"
    context_length: int


class ModelList(Struct, frozen=True, kw_only=True):
    object: str = "list"
    data: list[Model]


_encoder = msgspec.json.Encoder()


def _model(card: ModelCard) -> Model:
    return Model(id=card.name, created=card.created, context_length=card.max_prompt_tokens + 1)


def _may_use(caller: Caller, card: ModelCard) -> bool:
    return not caller.allowed_models or card.name in caller.allowed_models


async def list_models(connection: Connection, service: generation.Generations) -> None:
    """The models that the key may use."""
    caller = await authenticated(connection, service)
    models = [_model(card) for card in service.models() if _may_use(caller, card)]
    await connection.respond(200, _encoder.encode(ModelList(data=models)))


async def retrieve_model(connection: Connection, service: generation.Generations, name: str) -> None:
    """One model, if the key may use it."""
    caller = await authenticated(connection, service)
    card = service.card(name)
    if card is None or not _may_use(caller, card):
        raise model_not_found(name)
    await connection.respond(200, _encoder.encode(_model(card)))
