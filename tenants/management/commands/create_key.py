from collections.abc import Mapping
from typing import Any

from django.core.management.base import CommandParser

from tenants import services
from tenants.management.commands import _domain


class Command(_domain.DomainCommand):
    help = "Create an API key. Prints the key alone; it can't be shown again."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("tenant", help="the tenant's name or id")
        parser.add_argument("--project", default=services.DEFAULT_PROJECT, help="the project's name")
        parser.add_argument("--name", default="")
        _domain.add_limits(parser)

    def act(self, options: Mapping[str, Any]) -> str:
        tenant = _domain.tenant_named(options["tenant"])
        project = tenant.projects.filter(name=options["project"]).first()
        if project is None:
            names = ", ".join(tenant.projects.values_list("name", flat=True))
            raise _domain.Error(f"Tenant {tenant.name} has no project named {options['project']!r}; it has {names or 'none'}.")
        return services.create_key(project.pk, _domain.given(options, "name"), actor=_domain.actor()).secret
