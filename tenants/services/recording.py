"""What every write leaves behind in its own transaction: an audit entry, and outbox rows for what admission must learn."""

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from django.db import models, transaction

from tenants.models import AccessChange, AuditEntry, Tenant
from tenants.signals import access_changed

Kind = Literal["tenant", "project", "key", "trust_group", "operator"]
Values = dict[str, object]

ADMISSION_KINDS = ("tenant", "project", "key")


@dataclass(frozen=True, kw_only=True)
class Actor:
    """Who acts, and from where. `user_id` only for a person who is signed in."""

    name: str
    address: str | None = None
    user_id: int | None = None


def _json(value: object) -> object:
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, datetime):
        return value.isoformat()
    return value


def snapshot(row: models.Model, fields: Iterable[str]) -> Values:
    """The row's fields as they go into an audit entry."""
    return {field: _json(getattr(row, field)) for field in fields}


def record(
    actor: Actor,
    action: str,
    target: models.Model,
    kind: Kind,
    *,
    tenant: Tenant | None,
    before: Mapping[str, object],
    after: Mapping[str, object],
    also_changed: Iterable[tuple[Kind, uuid.UUID]] = (),
) -> None:
    """Write the audit entry and the outbox rows; announce the change once the surrounding transaction has committed."""
    assert transaction.get_connection().in_atomic_block
    AuditEntry.objects.create(
        actor=actor.name[:150],
        action=action,
        target_kind=kind,
        target_id=str(target.pk),
        tenant=tenant,
        before=dict(before),
        after=dict(after),
        address=actor.address,
    )
    own: list[tuple[Kind, uuid.UUID]] = [(kind, target.pk)] if kind in ADMISSION_KINDS else []
    changes = list(dict.fromkeys([*own, *also_changed]))
    if not changes:
        return
    AccessChange.objects.bulk_create([AccessChange(kind=changed, target=target_id) for changed, target_id in changes])

    def announce() -> None:
        access_changed.send(sender=type(target), changes=tuple(changes))

    # Robust: the change is committed by then. A listener that fails is logged, and the outbox row stays until admission has it.
    transaction.on_commit(announce, robust=True)


def update(
    row: models.Model,
    values: Mapping[str, object],
    actor: Actor,
    action: str,
    kind: Kind,
    *,
    tenant: Tenant | None,
    also_changed: Iterable[tuple[Kind, uuid.UUID]] = (),
) -> bool:
    """Set the values that differ and record them. False, and nothing written, where none differs."""
    changed = {field: value for field, value in values.items() if getattr(row, field) != value}
    if not changed:
        return False
    before = snapshot(row, changed)
    for field, value in changed.items():
        setattr(row, field, value)
    row.save(update_fields=[field.removesuffix("_id") for field in changed])
    record(actor, action, row, kind, tenant=tenant, before=before, after=snapshot(row, changed), also_changed=also_changed)
    return True
