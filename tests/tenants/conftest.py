"""A fixed cast: Acme, its neighbour Rival, and the operator who acts."""

import pytest

from tenants import services
from tenants.models import ApiKey, Project, Tenant
from tenants.services import Actor


@pytest.fixture
def operator() -> Actor:
    return Actor(name="olga", address="192.0.2.7")


@pytest.fixture
def acme(db, operator: Actor) -> Tenant:
    return services.create_tenant("Acme", actor=operator)


@pytest.fixture
def rival(db, operator: Actor) -> Tenant:
    return services.create_tenant("Rival", actor=operator)


@pytest.fixture
def acme_project(acme: Tenant) -> Project:
    return acme.projects.get()


@pytest.fixture
def acme_key(acme_project: Project, operator: Actor) -> ApiKey:
    return services.create_key(acme_project.pk, {"name": "production"}, actor=operator).key
