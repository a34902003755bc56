"""Writes to tenants: settings, limits, cache policy, suspension."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from django.db import IntegrityError, transaction
from django.utils import timezone

from tenants import policies
from tenants.errors import Invalid, NotFound, Refused, Taken
from tenants.models import CachePolicy, Project, Tenant, TrustGroup
from tenants.services.recording import Actor, Kind, record, snapshot, update

DEFAULT_PROJECT = "default"
_RECORDED = (*policies.TENANT, "cache_policy", "trust_group_id")


def _locked(tenant_id: uuid.UUID) -> Tenant:
    try:
        return Tenant.objects.select_for_update().get(pk=tenant_id)
    except Tenant.DoesNotExist as error:
        raise NotFound(f"There is no tenant {tenant_id}.") from error


def _taken(name: object) -> Taken:
    return Taken({"name": f"there is already a tenant named {name}"})


@transaction.atomic
def create_tenant(
    name: str,
    settings: Mapping[str, object] | None = None,
    *,
    actor: Actor,
    cache_policy: str = CachePolicy.TENANT,
    trust_group_id: uuid.UUID | None = None,
) -> Tenant:
    """A tenant with a project named "default". `settings`: the fields of policies.TENANT. Raises Invalid, Taken."""
    values = policies.clean(policies.TENANT, {**(settings or {}), "name": name})
    tenant = Tenant(**values)
    try:
        with transaction.atomic():
            tenant.save(force_insert=True)
    except IntegrityError as error:
        raise _taken(values["name"]) from error
    record(actor, "tenant.create", tenant, "tenant", tenant=tenant, before={}, after=snapshot(tenant, _RECORDED))
    if policies.clean_cache_policy(cache_policy) != tenant.cache_policy or trust_group_id is not None:
        tenant = set_cache_policy(tenant.pk, cache_policy, trust_group_id=trust_group_id, actor=actor)
    project = Project.objects.create(tenant=tenant, name=DEFAULT_PROJECT)
    record(actor, "project.create", project, "project", tenant=tenant, before={}, after={"name": project.name})
    return tenant


@transaction.atomic
def update_tenant(tenant_id: uuid.UUID, changes: Mapping[str, object], *, actor: Actor) -> Tenant:
    """Change any fields of policies.TENANT, limits among them. Raises Invalid, Taken, NotFound."""
    values = policies.clean(policies.TENANT, changes)
    tenant = _locked(tenant_id)
    try:
        with transaction.atomic():
            update(tenant, values, actor, "tenant.update", "tenant", tenant=tenant)
    except IntegrityError as error:
        raise _taken(values.get("name")) from error
    return tenant


@transaction.atomic
def suspend_tenant(tenant_id: uuid.UUID, *, actor: Actor) -> Tenant:
    """Refuse the tenant's new calls until it is resumed. Doing it twice changes nothing."""
    tenant = _locked(tenant_id)
    if tenant.suspended_at is None:
        update(tenant, {"suspended_at": timezone.now()}, actor, "tenant.suspend", "tenant", tenant=tenant)
    return tenant


@transaction.atomic
def resume_tenant(tenant_id: uuid.UUID, *, actor: Actor) -> Tenant:
    """Take the tenant's calls again."""
    tenant = _locked(tenant_id)
    update(tenant, {"suspended_at": None}, actor, "tenant.resume", "tenant", tenant=tenant)
    return tenant


@transaction.atomic
def set_cache_policy(tenant_id: uuid.UUID, cache_policy: str, *, actor: Actor, trust_group_id: uuid.UUID | None = None) -> Tenant:
    """Set who may reuse the tenant's cached prefixes. A trust group goes with "shared" only. Raises Invalid, NotFound, Refused.

    What was cached until now is forgotten, also by the members of a group that the tenant leaves or joins.
    """
    policy = policies.clean_cache_policy(cache_policy)
    shared = policy is CachePolicy.SHARED
    if shared and trust_group_id is None:
        raise Invalid({"trust_group": "the cache policy shared needs a trust group"})
    if not shared and trust_group_id is not None:
        raise Invalid({"trust_group": f"a trust group goes with the cache policy shared, not {policy.value}"})
    tenant = _locked_with_groups(tenant_id, trust_group_id)
    if tenant.cache_policy == policy and tenant.trust_group_id == trust_group_id:
        return tenant
    epochs = _next_epochs(tenant, tenant.trust_group_id, trust_group_id)
    values = {"cache_policy": policy.value, "trust_group_id": trust_group_id, "cache_epoch": epochs.epoch}
    update(tenant, values, actor, "tenant.cache_policy", "tenant", tenant=tenant, also_changed=epochs.changes)
    return tenant


@transaction.atomic
def purge_cache(tenant_id: uuid.UUID, *, actor: Actor) -> Tenant:
    """Forget everything cached for the tenant; in a trust group, everything cached for its members."""
    tenant = _locked_with_groups(tenant_id, None)
    epochs = _next_epochs(tenant, tenant.trust_group_id)
    update(tenant, {"cache_epoch": epochs.epoch}, actor, "tenant.purge_cache", "tenant", tenant=tenant, also_changed=epochs.changes)
    return tenant


def _locked_with_groups(tenant_id: uuid.UUID, joins: uuid.UUID | None) -> Tenant:
    """The tenant, locked after the trust groups that it is in and joins: groups first and in order, so that writers can't deadlock."""
    is_in = Tenant.objects.filter(pk=tenant_id).values_list("trust_group_id", flat=True).first()
    wanted = {group_id for group_id in (is_in, joins) if group_id is not None}
    found = set(TrustGroup.objects.select_for_update().filter(pk__in=wanted).order_by("pk").values_list("pk", flat=True))
    if joins is not None and joins not in found:
        raise Invalid({"trust_group": f"there is no trust group {joins}"})
    tenant = _locked(tenant_id)
    if tenant.trust_group_id != is_in:
        raise Refused(f"The trust group of tenant {tenant.name} was changed at this moment. Look at it and try again.")
    return tenant


@dataclass(frozen=True, slots=True)
class _Epochs:
    """The tenant's next cache epoch, and who moved to it as well."""

    epoch: int
    changes: tuple[tuple[Kind, uuid.UUID], ...]


def _next_epochs(tenant: Tenant, *group_ids: uuid.UUID | None) -> _Epochs:
    """An epoch that neither the tenant nor any of these trust groups ever had; all their members move to it.

    A group keeps its own, so that it never goes back to a purged one, whoever leaves and comes.
    """
    groups = TrustGroup.objects.filter(pk__in=[group_id for group_id in group_ids if group_id is not None])
    members = Tenant.objects.select_for_update().filter(trust_group__in=groups).exclude(pk=tenant.pk).order_by("pk")
    others = list(members.values_list("pk", flat=True))
    epoch = 1 + max(tenant.cache_epoch, *groups.values_list("cache_epoch", flat=True), 0)
    groups.update(cache_epoch=epoch)
    Tenant.objects.filter(pk__in=others).update(cache_epoch=epoch)
    return _Epochs(epoch, tuple(("tenant", other) for other in others))
