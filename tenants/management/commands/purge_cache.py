from collections.abc import Mapping
from typing import Any

from django.core.management.base import CommandParser

from tenants import services
from tenants.management.commands import _domain


class Command(_domain.DomainCommand):
    help = "Forget all that is cached for a tenant (in a trust group: for all its members)."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("tenant", help="the tenant's name or id")

    def act(self, options: Mapping[str, Any]) -> str:
        tenant = services.purge_cache(_domain.tenant_named(options["tenant"]).pk, actor=_domain.actor())
        return f"The cache of tenant {tenant} is forgotten; its epoch is {tenant.cache_epoch}."
