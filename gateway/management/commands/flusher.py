"""Run a ledger flusher until SIGTERM; `--check` says whether one is alive."""

import asyncio
import signal
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from redis.asyncio import Redis

from gateway.jobs.flusher import HEARTBEAT, Flusher


class Command(BaseCommand):
    help = "Move usage from the stream into the ledger, and keep admission's view of Postgres fresh, until SIGTERM."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--check", action="store_true", help="exit with 0 if a flusher has been at work in the last seconds")

    def handle(self, *args: Any, **options: Any) -> None:
        asyncio.run(self._check() if options["check"] else self._run())

    async def _check(self) -> None:
        async with Redis.from_url(settings.REDIS_URL) as redis:
            if not await redis.exists(HEARTBEAT):
                raise CommandError("no flusher has been at work in the last seconds")

    async def _run(self) -> None:
        async with Redis.from_url(settings.REDIS_URL) as redis:
            flusher = Flusher(redis)
            for number in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(number, flusher.stop)
            await flusher.run()
