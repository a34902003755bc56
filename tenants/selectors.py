"""Reads of the domain. Every list can be narrowed to a tenant, and is paged by key, so that no page costs more than another."""

import base64
import binascii
import json
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Generic, Literal, TypeVar

from django.core.exceptions import ValidationError
from django.db import models
from django.db.models import Count, Q, QuerySet
from django.utils import timezone

from tenants.errors import Invalid, NotFound
from tenants.models import ApiKey, AuditEntry, Project, Tenant, TrustGroup

Row = TypeVar("Row", bound=models.Model)
TenantState = Literal["active", "suspended"]
KeyState = Literal["active", "expiring", "expired", "revoked"]

TENANT_STATES: tuple[TenantState, ...] = ("active", "suspended")
KEY_STATES: tuple[KeyState, ...] = ("active", "expiring", "expired", "revoked")
EXPIRING_WITHIN = timedelta(days=14)

BY_NAME = ("name", "id")
NEWEST_FIRST = ("-created_at", "-id")
LATEST_FIRST = ("-at", "-id")


def tenants(*, search: str = "", state: str = "") -> QuerySet[Tenant]:
    """Tenants whose name or id holds `search`."""
    query = Tenant.objects.select_related("trust_group")
    if search:
        query = query.filter(Q(name__icontains=search) | Q(id=_uuid_or_none(search)))
    if state:
        query = query.filter(suspended_at__isnull=state == "active")
    return query


def projects(*, tenant: uuid.UUID | None = None, search: str = "") -> QuerySet[Project]:
    """Projects, of one tenant where it is given."""
    query = Project.objects.select_related("tenant")
    if tenant is not None:
        query = query.filter(tenant=tenant)
    if search:
        query = query.filter(name__icontains=search)
    return query


def keys(*, tenant: uuid.UUID | None = None, project: uuid.UUID | None = None, search: str = "", state: str = "") -> QuerySet[ApiKey]:
    """Keys whose name, first characters or id hold `search`; of one tenant or project where it is given."""
    query = ApiKey.objects.select_related("tenant", "project", "created_by")
    if tenant is not None:
        query = query.filter(tenant=tenant)
    if project is not None:
        query = query.filter(project=project)
    if search:
        query = query.filter(Q(name__icontains=search) | Q(prefix__startswith=search) | Q(id=_uuid_or_none(search)))
    if state:
        query = query.filter(_in_key_state(state, timezone.now()))
    return query


def key_state(key: ApiKey, now: datetime) -> KeyState:
    """What the key is good for; "expiring" still works."""
    if key.revoked_at is not None:
        return "revoked"
    if key.expires_at is None or key.expires_at > now + EXPIRING_WITHIN:
        return "active"
    return "expiring" if key.expires_at > now else "expired"


def _in_key_state(state: str, now: datetime) -> Q:
    soon = now + EXPIRING_WITHIN
    unrevoked = Q(revoked_at=None)
    return {
        "revoked": Q(revoked_at__isnull=False),
        "expired": unrevoked & Q(expires_at__lte=now),
        "expiring": unrevoked & Q(expires_at__gt=now, expires_at__lte=soon),
        "active": unrevoked & (Q(expires_at=None) | Q(expires_at__gt=soon)),
    }[state]


def trust_groups() -> QuerySet[TrustGroup]:
    """Trust groups with `member_count`."""
    return TrustGroup.objects.annotate(member_count=Count("tenants"))


def audit_entries(
    *,
    tenant: uuid.UUID | None = None,
    actor: str = "",
    action: str = "",
    target: str = "",
    since: datetime | None = None,
    until: datetime | None = None,
) -> QuerySet[AuditEntry]:
    """Audit entries; `action` is a whole one ("key.create") or its first part ("key"), `until` is excluded."""
    query = AuditEntry.objects.select_related("tenant")
    if tenant is not None:
        query = query.filter(tenant=tenant)
    if actor:
        query = query.filter(actor__icontains=actor)
    if action:
        query = query.filter(Q(action=action) | Q(action__startswith=f"{action}."))
    if target:
        query = query.filter(target_id=target)
    if since is not None:
        query = query.filter(at__gte=since)
    if until is not None:
        query = query.filter(at__lt=until)
    return query


def names(kind: Literal["tenant", "project", "key", "model"], ids: Iterable[str]) -> dict[str, str]:
    """What people call the tenants, projects or keys of these ids; a model's id is its name."""
    if kind == "tenant":
        return {str(pk): name for pk, name in Tenant.objects.filter(pk__in=ids).values_list("pk", "name")}
    if kind == "project":
        rows = Project.objects.filter(pk__in=ids).values_list("pk", "tenant__name", "name")
        return {str(pk): f"{tenant} / {name}" for pk, tenant, name in rows}
    if kind == "key":
        keyed = ApiKey.objects.filter(pk__in=ids).values_list("pk", "tenant__name", "prefix", "name")
        return {str(pk): f"{tenant} / {prefix}…{f' ({name})' if name else ''}" for pk, tenant, prefix, name in keyed}
    return {name: name for name in ids}


def one(query: QuerySet[Row], row_id: object) -> Row:
    """The row of this id within the query, or NotFound: what lies outside looks like what doesn't exist."""
    row = query.filter(pk=row_id).first()
    if row is None:
        raise NotFound(f"There is no {query.model._meta.verbose_name} {row_id}.")
    return row


@dataclass(frozen=True, kw_only=True)
class Page(Generic[Row]):
    rows: list[Row]
    next: str | None
    """Give it as `after` to read on; None at the end."""


def page(query: QuerySet[Row], order: tuple[str, ...], *, size: int, after: str = "") -> Page[Row]:
    """The next rows in `order`: fields never null, the last one unique; "-" for descending. Raises Invalid for another list's cursor."""
    query = query.order_by(*order)
    if after:
        query = query.filter(_beyond(order, _values_of(after, order, query.model)))
    rows = list(query[: size + 1])
    more = len(rows) > size
    rows = rows[:size]
    return Page(rows=rows, next=_cursor(rows[-1], order) if more else None)


def _beyond(order: tuple[str, ...], values: list[Any]) -> Q:
    """Rows after the given one: greater in the first field, or equal there and greater in the second, and so on."""
    beyond, equal = Q(), Q()
    for field, value in zip(order, values, strict=True):
        name = field.removeprefix("-")
        comparison = "lt" if field.startswith("-") else "gt"
        beyond |= equal & Q(**{f"{name}__{comparison}": value})
        equal &= Q(**{name: value})
    return beyond


def _column(model: type[models.Model], field: str) -> "models.Field[Any, Any]":
    column = model._meta.get_field(field.removeprefix("-"))
    assert isinstance(column, models.Field)
    return column


def _cursor(row: models.Model, order: tuple[str, ...]) -> str:
    values = [_column(type(row), field).value_to_string(row) for field in order]
    return base64.urlsafe_b64encode(json.dumps(values).encode()).decode().rstrip("=")


def _values_of(cursor: str, order: tuple[str, ...], model: type[models.Model]) -> list[Any]:
    try:
        values = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        if not isinstance(values, list) or len(values) != len(order) or not all(isinstance(value, str) for value in values):
            raise ValueError("not a cursor of this list")
        return [_column(model, field).to_python(value) for field, value in zip(order, values, strict=True)]
    except (ValueError, ValidationError, binascii.Error) as error:
        raise Invalid({"after": "this is no cursor of this list; leave it out to begin at the start"}) from error


def _uuid_or_none(text: str) -> uuid.UUID | None:
    try:
        return uuid.UUID(text)
    except ValueError:
        return None
