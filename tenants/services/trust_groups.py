"""Writes to trust groups. Tenants join and leave one by their cache policy."""

import uuid
from collections.abc import Mapping

from django.db import IntegrityError, transaction

from tenants import policies
from tenants.errors import NotFound, Refused, Taken
from tenants.models import TrustGroup
from tenants.services.recording import Actor, record, update


def _locked(group_id: uuid.UUID) -> TrustGroup:
    try:
        return TrustGroup.objects.select_for_update().get(pk=group_id)
    except TrustGroup.DoesNotExist as error:
        raise NotFound(f"There is no trust group {group_id}.") from error


def _taken(name: object) -> Taken:
    return Taken({"name": f"there is already a trust group named {name}"})


@transaction.atomic
def create_trust_group(name: str, *, actor: Actor) -> TrustGroup:
    """A trust group without members. Raises Invalid, Taken."""
    values = policies.clean(policies.TRUST_GROUP, {"name": name})
    group = TrustGroup(**values)
    try:
        with transaction.atomic():
            group.save(force_insert=True)
    except IntegrityError as error:
        raise _taken(values["name"]) from error
    record(actor, "trust_group.create", group, "trust_group", tenant=None, before={}, after=values)
    return group


@transaction.atomic
def update_trust_group(group_id: uuid.UUID, changes: Mapping[str, object], *, actor: Actor) -> TrustGroup:
    """Rename the group. Raises Invalid, Taken, NotFound."""
    values = policies.clean(policies.TRUST_GROUP, changes)
    group = _locked(group_id)
    try:
        with transaction.atomic():
            update(group, values, actor, "trust_group.update", "trust_group", tenant=None)
    except IntegrityError as error:
        raise _taken(values.get("name")) from error
    return group


@transaction.atomic
def delete_trust_group(group_id: uuid.UUID, *, actor: Actor) -> None:
    """Remove a group that has no members. Raises NotFound, Refused."""
    group = _locked(group_id)
    members = group.tenants.count()
    if members:
        raise Refused(f"Trust group {group.name} has {members} tenants. Give them another cache policy first.")
    record(actor, "trust_group.delete", group, "trust_group", tenant=None, before={"name": group.name}, after={})
    group.delete()
