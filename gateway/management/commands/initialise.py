"""Bring database and Valkey to the state that the other processes expect: the first step of `up` and of a deployment; safe to repeat."""

import json
from dataclasses import asdict
from typing import Any

from asgiref.sync import async_to_sync
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandParser

from gateway.admission import projection
from tenants import demo


class Command(BaseCommand):
    help = "Migrate, make the first operator and the demo tenant where there is no operator yet, and rebuild what Valkey must know."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--no-demo", action="store_true", help="make no operator and no demo tenant")

    def handle(self, *args: Any, **options: Any) -> None:
        call_command("migrate", verbosity=0, interactive=False)
        made = None if options["no_demo"] else demo.ensure_demo()
        async_to_sync(projection.rebuild)()
        # The last line is for the supervisor: what was newly made, and is shown only now.
        self.stdout.write(json.dumps(asdict(made) if made else {}))
