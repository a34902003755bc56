from collections.abc import Mapping
from typing import Any

from django.core.management.base import CommandParser

from tenants import services
from tenants.management.commands import _domain


class Command(_domain.DomainCommand):
    help = "Take a suspended tenant's calls again."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("tenant", help="the tenant's name or id")

    def act(self, options: Mapping[str, Any]) -> str:
        tenant = services.resume_tenant(_domain.tenant_named(options["tenant"]).pk, actor=_domain.actor())
        return f"Tenant {tenant} is active."
