"""What the domain's commands share: who acts, how a tenant or key is named on a command line, one line for each error."""

import getpass
from argparse import ArgumentParser
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import OperationalError

from tenants.errors import DomainError
from tenants.models import LIMIT_FIELDS, ApiKey, Tenant
from tenants.services import Actor


class Error(CommandError):
    """Printed as "Error: …", exit status 1."""


class DomainCommand(BaseCommand):
    """Runs `act` and prints what it returns."""

    requires_system_checks: list[str] = []

    def handle(self, *args: Any, **options: Any) -> str:
        try:
            return self.act(options)
        except DomainError as error:
            raise Error(str(error)) from error
        except OperationalError as error:
            raise Error(
                f"Postgres can't be reached. Is `manage.py up` running with LOCKGATE_HOME={settings.LOCKGATE_HOME}, or DATABASE_URL set?"
            ) from error

    def act(self, options: Mapping[str, Any]) -> str:
        raise NotImplementedError


def actor() -> Actor:
    """The system's user who runs the command."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        name = "unknown user"
    return Actor(name=f"{name} (command line)")


def add_limits(parser: ArgumentParser) -> None:
    """An option for each limit."""
    for field in LIMIT_FIELDS:
        parser.add_argument(f"--{field.replace('_', '-')}", type=int, metavar="N")
    parser.add_argument("--allowed-models", nargs="+", metavar="MODEL", help="model names; without it every model is allowed")


def given(options: Mapping[str, Any], *fields: str) -> dict[str, object]:
    """The options of these names, and the limits, that were given."""
    return {field: options[field] for field in (*fields, *LIMIT_FIELDS, "allowed_models") if options.get(field) is not None}


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None


def tenant_named(text: str) -> Tenant:
    """The tenant of this name or id."""
    tenant_id = _uuid(text)
    tenant = Tenant.objects.filter(pk=tenant_id).first() if tenant_id else None
    tenant = tenant or Tenant.objects.filter(name=text).first()
    if tenant is None:
        raise Error(f"There is no tenant named {text!r}.")
    return tenant


def key_named(text: str) -> ApiKey:
    """The key of this id or prefix (its first characters, as listed)."""
    key_id = _uuid(text)
    if key_id is not None:
        keys = list(ApiKey.objects.filter(pk=key_id))
    else:
        keys = list(ApiKey.objects.filter(prefix=text.removesuffix("…"), revoked_at=None)[:2])
    if not keys:
        raise Error(f"There is no key with id or prefix {text!r}.")
    if len(keys) > 1:
        raise Error(f"Several keys begin with {text!r}. Give the key's id.")
    return keys[0]
