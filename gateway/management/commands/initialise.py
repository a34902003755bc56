"""Bring database and Valkey to the state that the other processes expect: the first step of `up` and of a deployment; safe to repeat."""

import json
from dataclasses import asdict
from typing import Any

from asgiref.sync import async_to_sync
from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandParser

from gateway.admission import projection
from gateway.jobs.embedded import write_private
from tenants import demo
from tenants.demo import DemoCredentials


class Command(BaseCommand):
    """Run by the supervisor as well, which finds a new operator's password in demo.json."""

    help = "Migrate, make the first operator and the demo tenant where there is no operator yet, and rebuild what Valkey must know."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--no-demo", action="store_true", help="make no operator and no demo tenant")

    def handle(self, *args: Any, **options: Any) -> None:
        call_command("migrate", verbosity=0, interactive=False)
        if not options["no_demo"]:
            demo.ensure_demo(keep=_keep)
        async_to_sync(projection.rebuild)()


def _keep(credentials: DemoCredentials) -> None:
    """Before they are committed: nobody could read them anywhere else."""
    write_private(settings.LOCKGATE_HOME / "demo.json", json.dumps(asdict(credentials), indent=2) + "\n")
