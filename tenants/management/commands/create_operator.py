import sys
from collections.abc import Mapping
from typing import Any

from django.core.management.base import CommandParser

from tenants import services
from tenants.management.commands import _domain


class Command(_domain.DomainCommand):
    help = "Create someone who may sign in to the console. Prints the password, once, unless it was given."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name")
        parser.add_argument(
            "--role", choices=["operator", "auditor"], default="operator", help="an auditor reads everything, changes nothing"
        )
        parser.add_argument("--password-stdin", action="store_true", help="read the password from standard input")

    def act(self, options: Mapping[str, Any]) -> str:
        password = sys.stdin.readline().rstrip("\r\n") if options["password_stdin"] else None
        created = services.create_operator(options["name"], actor=_domain.actor(), password=password, role=options["role"])
        return f"{created.user.get_username()} was created." if options["password_stdin"] else created.password
