"""The overview, and the stream that keeps it current."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from asgiref.sync import sync_to_async
from django.contrib.auth import get_user
from django.db import connection
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.template.loader import render_to_string
from django.views.decorators.http import require_GET

from gateway.console import charts, latency, sampler, usage
from gateway.console.attention import concerns
from gateway.console.fleet import Fleet, Worker, blocks_held
from gateway.console.history import History
from gateway.console.people import role_of
from gateway.console.shell import page, reading

SPAN_S = 300.0
REAUTHORISE_EVERY = 2
"""Samples between two looks at whether the session still holds."""
COUNT_EVERY = 15
"""Samples between two looks at the rollups."""


@require_GET
@reading
def overview(request: HttpRequest) -> HttpResponse:
    history = History()
    history.add(*sampler.look())
    return page(request, "console/overview/page.html", {**figures(history), "today": usage.today()})


@require_GET
async def live(request: HttpRequest) -> HttpResponseBase:
    """Server-sent events: the overview's figures once a second, until the page goes or the session ends."""
    if not await sync_to_async(_still_permitted)(request):
        return HttpResponse(status=403)
    response = StreamingHttpResponse(_events(request), content_type="text/event-stream")
    response.headers["Cache-Control"] = "no-store"
    response.headers["X-Accel-Buffering"] = "no"
    return response


async def _events(request: HttpRequest) -> AsyncIterator[str]:
    sample = 0
    used: dict[str, Any] = {}
    async with aclosing(sampler.sampler().watch()) as histories:
        async for history in histories:
            if sample % REAUTHORISE_EVERY == 0 and not await sync_to_async(_still_permitted)(request):
                yield "event: signed-out\ndata: \n\n"
                return
            if sample % COUNT_EVERY == 0:
                used = await sync_to_async(_used_today)()
            sample += 1
            html = render_to_string("console/overview/live.html", {**figures(history), "today": used})
            yield "".join(f"data: {line}\n" for line in html.splitlines() if line.strip()) + "\n"


def _used_today() -> dict[str, Any]:
    try:
        return usage.today()
    finally:
        _give_back_connection()


def _give_back_connection() -> None:
    """A stream must hold no connection while it waits."""
    if not connection.in_atomic_block:
        connection.close()


def _still_permitted(request: HttpRequest) -> bool:
    """Whether the session is still there and its owner may read."""
    try:
        session = type(request.session)(request.session.session_key)
        fresh = HttpRequest()
        fresh.session = session
        return role_of(get_user(fresh)) is not None
    finally:
        _give_back_connection()


def figures(history: History) -> dict[str, Any]:
    """What the overview's template shows."""
    now = history.latest
    assert now is not None
    total, free, cached = now.total("blocks_total"), now.total("blocks_free"), now.total("blocks_cached")
    held = None if total is None or free is None or cached is None else total - free - cached
    return {
        "fleet": now,
        "concerns": concerns(now),
        "running": now.total("running"),
        "waiting": now.total("waiting"),
        "blocks": {"total": total, "free": free, "cached": cached, "held": held},
        "bar": _bar(held, cached, total),
        "kv_level": held / total if held is not None and total else None,
        "tokens_in": _sum(history.rate("tokens_computed"), history.rate("tokens_cached")),
        "tokens_out": history.rate("tokens_generated"),
        "hit_rate": history.hit_rate(),
        "cached_tokens": history.count("tokens_cached"),
        "preemptions": history.count("preemptions"),
        "errors": history.count("requests_failed"),
        "first_token": history.percentiles(latency.TTFT),
        "per_token": history.percentiles(latency.TPOT),
        "covers_s": history.covers_s,
        "workers": [_worker_row(worker) for worker in now.workers],
        "charts": [_scheduler_state(history), _token_throughput(history)],
        "model": _models(now),
    }


def _sum(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one + other


def _bar(held: int | None, cached: int | None, total: int | None) -> dict[str, str] | None:
    """Widths in percent for the KV bar."""
    if held is None or cached is None or not total:
        return None
    return {"held": f"{100 * held / total:.1f}", "cached": f"{100 * cached / total:.1f}"}


def _worker_row(worker: Worker) -> dict[str, Any]:
    load = worker.load
    level = blocks_held(load) / load.blocks_total if load is not None and load.blocks_total else None
    return {"worker": worker, "load": load, "kv_level": level, "held": None if load is None else blocks_held(load)}


def _models(now: Fleet) -> str:
    return ", ".join(sorted({worker.registration.model for worker in now.workers if worker.registration is not None}))


def _scheduler_state(history: History) -> charts.Chart:
    running = history.levels(lambda sample: sample.total("running"))
    waiting = history.levels(lambda sample: sample.total("waiting"))
    return charts.chart("Scheduler State", "requests", [("running", 1, running), ("waiting", 2, waiting)], span_s=SPAN_S)


def _token_throughput(history: History) -> charts.Chart:
    series = [
        ("prompt, computed", 3, history.rates("tokens_computed")),
        ("prompt, cached", 4, history.rates("tokens_cached")),
        ("generated", 1, history.rates("tokens_generated")),
    ]
    return charts.chart("Token Throughput", "tokens/s", series, span_s=SPAN_S)
