from collections.abc import Mapping
from typing import Any

from django.core.management.base import CommandParser

from tenants import services
from tenants.management.commands import _domain


class Command(_domain.DomainCommand):
    help = "End an API key for good."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("key", help="the key's id, or its first characters as listed")

    def act(self, options: Mapping[str, Any]) -> str:
        key = services.revoke_key(_domain.key_named(options["key"]).pk, actor=_domain.actor())
        return f"Key {key} of tenant {key.tenant} is revoked."
