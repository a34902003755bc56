"""Writes to projects."""

import uuid
from collections.abc import Mapping

from django.db import IntegrityError, transaction
from django.utils import timezone

from tenants import policies
from tenants.errors import NotFound, Taken
from tenants.models import Project, Tenant
from tenants.services.recording import Actor, record, snapshot, update


def _locked(project_id: uuid.UUID) -> Project:
    try:
        return Project.objects.select_for_update(of=("self",)).select_related("tenant").get(pk=project_id)
    except Project.DoesNotExist as error:
        raise NotFound(f"There is no project {project_id}.") from error


def _taken(name: object) -> Taken:
    return Taken({"name": f"the tenant already has a project named {name}"})


@transaction.atomic
def create_project(tenant_id: uuid.UUID, name: str, limits: Mapping[str, object] | None = None, *, actor: Actor) -> Project:
    """A project of the tenant. Raises Invalid, Taken, NotFound."""
    values = policies.clean(policies.PROJECT, {**(limits or {}), "name": name})
    tenant = Tenant.objects.filter(pk=tenant_id).first()
    if tenant is None:
        raise NotFound(f"There is no tenant {tenant_id}.")
    project = Project(tenant=tenant, **values)
    try:
        with transaction.atomic():
            project.save(force_insert=True)
    except IntegrityError as error:
        raise _taken(values["name"]) from error
    record(actor, "project.create", project, "project", tenant=tenant, before={}, after=snapshot(project, policies.PROJECT))
    return project


@transaction.atomic
def update_project(project_id: uuid.UUID, changes: Mapping[str, object], *, actor: Actor) -> Project:
    """Change the project's name or limits. Raises Invalid, Taken, NotFound."""
    values = policies.clean(policies.PROJECT, changes)
    project = _locked(project_id)
    try:
        with transaction.atomic():
            update(project, values, actor, "project.update", "project", tenant=project.tenant)
    except IntegrityError as error:
        raise _taken(values.get("name")) from error
    return project


@transaction.atomic
def suspend_project(project_id: uuid.UUID, *, actor: Actor) -> Project:
    """Refuse new calls by the project's keys until it is resumed. Doing it twice changes nothing."""
    project = _locked(project_id)
    if project.suspended_at is None:
        update(project, {"suspended_at": timezone.now()}, actor, "project.suspend", "project", tenant=project.tenant)
    return project


@transaction.atomic
def resume_project(project_id: uuid.UUID, *, actor: Actor) -> Project:
    """Take the project's calls again."""
    project = _locked(project_id)
    update(project, {"suspended_at": None}, actor, "project.resume", "project", tenant=project.tenant)
    return project
