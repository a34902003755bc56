"""The overview's stream: once a second for as long as the session holds."""

import asyncio
from contextlib import aclosing

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import AnonymousUser
from django.test import AsyncClient, RequestFactory

from gateway.console import overview, sampler
from tenants import services
from tests.gateway.console.conftest import COMMAND_LINE, PASSWORD, announce

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(sampler, "INTERVAL_S", 0.01)


async def signed_in(role: str = "operator") -> AsyncClient:
    created = await sync_to_async(services.create_operator)("olga", password=PASSWORD, role=role, actor=COMMAND_LINE)
    client = AsyncClient()
    await client.aforce_login(created.user)
    return client


async def test_the_stream_shows_the_fleet_and_goes_on(empty_registry, quick):
    announce(empty_registry)
    client = await signed_in("auditor")
    response = await client.get("/console/live/overview/")
    assert response.headers["Content-Type"] == "text/event-stream"
    async with aclosing(aiter(response.streaming_content)) as events:
        first = (await anext(events)).decode()
        assert "SmolLM2-135M-Instruct" in first
        assert all(line.startswith("data: ") for line in first.strip().split("\n"))
        announce(empty_registry, "worker-of-late")
        async for event in events:
            if b"worker-of-late" in event:
                break


async def test_the_stream_ends_with_the_session(empty_registry, quick):
    client = await signed_in()
    response = await client.get("/console/live/overview/")
    async with aclosing(aiter(response.streaming_content)) as events:
        await anext(events)
        await client.post("/console/logout/")
        last = [event async for event in events][-1]
    assert last == b"event: signed-out\ndata: \n\n"


async def test_the_stream_ends_when_its_owner_loses_the_role(empty_registry, quick):
    client = await signed_in()
    response = await client.get("/console/live/overview/")
    from django.contrib.auth.models import User

    async with aclosing(aiter(response.streaming_content)) as events:
        await anext(events)
        await User.objects.filter(username="olga").aupdate(is_active=False)
        last = [event async for event in events][-1]
    assert last.startswith(b"event: signed-out")


async def test_nobody_else_gets_a_stream(empty_registry):
    assert (await AsyncClient().get("/console/live/overview/")).status_code == 403


async def test_watchers_share_one_reader_that_rests_when_they_are_gone(empty_registry, quick):
    shared = sampler.sampler()
    async with aclosing(shared.watch()) as one, aclosing(shared.watch()) as other:
        await asyncio.gather(anext(one), anext(other))
        task = shared._task
        await asyncio.gather(anext(one), anext(other))
        assert shared._task is task
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_every_watcher_is_let_go_when_the_process_stops(quick):
    shared = sampler.Sampler()
    async with aclosing(shared.watch()) as histories:
        await anext(histories)
        shared.end()
        assert [history async for history in histories] == []
    assert [history async for history in shared.watch()] == [shared.history]


async def test_a_reader_that_fails_fails_its_watchers_rather_than_leaving_them_waiting(monkeypatch, quick):
    def fail():
        raise ZeroDivisionError

    monkeypatch.setattr(sampler, "look", fail)
    async with aclosing(sampler.Sampler().watch()) as histories:
        with pytest.raises(ZeroDivisionError):
            await anext(histories)


def test_a_stream_holds_no_connection_between_looks(db):
    request = RequestFactory().get("/")
    from django.contrib.sessions.backends.db import SessionStore

    request.session = SessionStore()
    request.user = AnonymousUser()
    assert overview._still_permitted(request) is False
    from django.db import connection

    assert connection.connection is None
