from collections.abc import Mapping
from typing import Any

from django.core.management.base import CommandParser

from tenants import services
from tenants.management.commands import _domain
from tenants.models import CachePolicy, TrustGroup


class Command(_domain.DomainCommand):
    help = "Create a tenant with a project named default. Prints its id."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name")
        parser.add_argument("--cache-policy", choices=CachePolicy.values, default=CachePolicy.TENANT.value)
        parser.add_argument("--trust-group", metavar="NAME", help="with --cache-policy shared; created if there is none of that name")
        parser.add_argument("--weight", type=float)
        parser.add_argument("--priority", type=int, help="lower is served first")
        parser.add_argument("--time-zone")
        _domain.add_limits(parser)

    def act(self, options: Mapping[str, Any]) -> str:
        actor = _domain.actor()
        group_id = None
        if (name := options["trust_group"]) is not None:
            group = TrustGroup.objects.filter(name=name).first() or services.create_trust_group(name, actor=actor)
            group_id = group.pk
        tenant = services.create_tenant(
            options["name"],
            _domain.given(options, "weight", "priority", "time_zone"),
            actor=actor,
            cache_policy=options["cache_policy"],
            trust_group_id=group_id,
        )
        return str(tenant.pk)
