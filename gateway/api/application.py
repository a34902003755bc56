"""The data plane as one ASGI application: routes, and the one place where errors become answers."""

import logging
from collections.abc import Awaitable, Callable

from gateway import generation
from gateway.admission.outcomes import Refused
from gateway.api import errors
from gateway.api.answers import error_event
from gateway.api.chat_completions import chat_completions
from gateway.api.completions import completions
from gateway.api.connection import ClientGone, Connection, Receive, Scope, Send
from gateway.api.errors import ApiError
from gateway.api.health import healthz, readyz
from gateway.api.models import list_models, retrieve_model

logger = logging.getLogger(__name__)

Endpoint = Callable[[Connection, generation.Generations], Awaitable[None]]

ENDPOINTS: dict[str, tuple[str, Endpoint]] = {
    "/v1/chat/completions": ("POST", chat_completions),
    "/v1/completions": ("POST", completions),
    "/v1/models": ("GET", list_models),
}
PROBES: dict[str, Callable[[Connection], Awaitable[None]]] = {"/healthz": healthz, "/readyz": readyz}
ONE_MODEL = "/v1/models/"


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    """Serve one HTTP request."""
    connection = Connection(scope, receive, send)
    try:
        await _dispatch(connection)
    except ClientGone:
        return
    except ApiError as error:
        await _answer(connection, await _stranger_first(connection, error))
    except generation.Unavailable as error:
        await _answer(connection, await _stranger_first(connection, errors.unavailable(error.message, error.retry_after_s)))
    except Exception:
        logger.exception("request %s failed", connection.internal_id)
        await _answer(connection, errors.internal_error(connection.request_id))


async def _dispatch(connection: Connection) -> None:
    path = connection.path
    if path in PROBES:
        _check_method(connection, "GET")
        await PROBES[path](connection)
    elif path in ENDPOINTS:
        method, endpoint = ENDPOINTS[path]
        _check_method(connection, method)
        await endpoint(connection, generation.service())
    elif path.startswith(ONE_MODEL) and len(path) > len(ONE_MODEL):
        _check_method(connection, "GET")
        await retrieve_model(connection, generation.service(), path.removeprefix(ONE_MODEL))
    else:
        raise ApiError(f"Unknown request URL: {connection.method} {path[:200]}.", status=404, code="unknown_url")


def _check_method(connection: Connection, allowed: str) -> None:
    if connection.method != allowed and not (allowed == "GET" and connection.method == "HEAD"):
        raise ApiError(
            f"Not allowed to {connection.method[:20]} on {connection.path[:200]}; use {allowed}.",
            status=405,
            code="method_not_allowed",
            headers=[(b"allow", allowed.encode())],
        )


async def _stranger_first(connection: Connection, error: ApiError) -> ApiError:
    """Who has no valid key learns that, and nothing about what else was wrong. Costs a look-up only when something was."""
    if connection.key_checked or connection.key_digest is None or error.status == 401:
        return error
    try:
        outcome = await generation.service().authenticate(connection.key_digest)
    except generation.Unavailable:
        return error
    return errors.refused(outcome) if isinstance(outcome, Refused) and outcome.code != "unavailable" else error


async def _answer(connection: Connection, error: ApiError) -> None:
    if connection.gone or connection.finished:
        return
    if not connection.started:
        await connection.respond(error.status, error.body(), error.headers)
    elif connection.streaming:
        await connection.send(error_event(error), last=True)
