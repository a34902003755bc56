"""Writes to API keys. A secret exists only in the answer to its creation."""

import hashlib
import secrets
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from django.db import transaction
from django.utils import timezone

from tenants import policies
from tenants.errors import Invalid, NotFound, Refused
from tenants.models import ApiKey, Project
from tenants.services.recording import Actor, record, snapshot, update

KEY_PREFIX = "lg-"
SHOWN_CHARACTERS = 9
LONGEST_GRACE = timedelta(days=30)


@dataclass(frozen=True, kw_only=True)
class CreatedKey:
    key: ApiKey
    secret: str = field(repr=False)
    """Shown once; only its SHA-256 is stored."""


def digest(secret: str) -> str:
    """What is stored of a key, and what admission looks it up by."""
    return hashlib.sha256(secret.encode()).hexdigest()


def _locked(key_id: uuid.UUID) -> ApiKey:
    try:
        return ApiKey.objects.select_for_update(of=("self",)).select_related("tenant", "project").get(pk=key_id)
    except ApiKey.DoesNotExist as error:
        raise NotFound(f"There is no key {key_id}.") from error


def _insert(project: Project, values: Mapping[str, object], actor: Actor, *, rotated_from: ApiKey | None = None) -> CreatedKey:
    secret = KEY_PREFIX + secrets.token_urlsafe(32)
    key = ApiKey.objects.create(
        tenant=project.tenant,
        project=project,
        prefix=secret[:SHOWN_CHARACTERS],
        digest=digest(secret),
        created_by_id=actor.user_id,
        **values,
    )
    after = snapshot(key, ("prefix", "project_id", *policies.KEY))
    action = "key.create"
    if rotated_from is not None:
        action, after["rotated_from"] = "key.rotate", str(rotated_from.pk)
    record(actor, action, key, "key", tenant=project.tenant, before={}, after=after)
    return CreatedKey(key=key, secret=secret)


@transaction.atomic
def create_key(project_id: uuid.UUID, settings: Mapping[str, object] | None = None, *, actor: Actor) -> CreatedKey:
    """A key of the project. `settings`: the fields of policies.KEY. Raises Invalid, NotFound."""
    values = policies.clean(policies.KEY, settings or {})
    project = Project.objects.select_related("tenant").filter(pk=project_id).first()
    if project is None:
        raise NotFound(f"There is no project {project_id}.")
    return _insert(project, values, actor)


@transaction.atomic
def update_key(key_id: uuid.UUID, changes: Mapping[str, object], *, actor: Actor) -> ApiKey:
    """Change the key's name, expiry or limits. Raises Invalid, NotFound, Refused (revoked)."""
    values = policies.clean(policies.KEY, changes)
    key = _locked(key_id)
    _refuse_revoked(key)
    update(key, values, actor, "key.update", "key", tenant=key.tenant)
    return key


@transaction.atomic
def rotate_key(key_id: uuid.UUID, *, grace: timedelta, actor: Actor) -> CreatedKey:
    """A new key with the old one's settings; the old one works for `grace` more, or not at all if that is zero.

    The new key lives as long as the old one was made for. Raises Invalid, NotFound, Refused (revoked or expired).
    """
    if not timedelta(0) <= grace <= LONGEST_GRACE:
        raise Invalid({"grace": f"expected 0 to {LONGEST_GRACE.days} days"})
    old = _locked(key_id)
    _refuse_revoked(old)
    now = timezone.now()
    if old.expires_at is not None and old.expires_at <= now:
        raise Refused(f"Key {old.prefix}… has expired. Create a new key instead.")
    settings: dict[str, object] = {name: getattr(old, name) for name in policies.KEY}
    settings["expires_at"] = None if old.expires_at is None else now + (old.expires_at - old.created_at)
    created = _insert(old.project, settings, actor, rotated_from=old)
    retirement: dict[str, object] = {"expires_at": _earlier(old.expires_at, now + grace)} if grace else {"revoked_at": now}
    update(old, retirement, actor, "key.retire", "key", tenant=old.tenant)
    return created


@transaction.atomic
def revoke_key(key_id: uuid.UUID, *, actor: Actor) -> ApiKey:
    """End the key for good. Doing it twice changes nothing."""
    key = _locked(key_id)
    if key.revoked_at is None:
        update(key, {"revoked_at": timezone.now()}, actor, "key.revoke", "key", tenant=key.tenant)
    return key


def _refuse_revoked(key: ApiKey) -> None:
    if key.revoked_at is not None:
        raise Refused(f"Key {key.prefix}… was revoked. Create a new key instead.")


def _earlier(one: datetime | None, other: datetime) -> datetime:
    return other if one is None else min(one, other)
