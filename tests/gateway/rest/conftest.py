"""The cast of the management API: Olga operates, Paul audits, Nick is nobody in particular; Acme and Rival are tenants."""

import pytest
from django.contrib.auth.models import User
from rest_framework.test import APIClient

from tenants import services
from tenants.models import Tenant
from tenants.services import Actor

PASSWORD = "correct horse battery"
COMMAND_LINE = Actor(name="set-up")


@pytest.fixture(autouse=True)
def quick_passwords(settings):
    """Argon2 is slow on purpose; what it protects isn't tested here."""
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


def signed_in(name: str, role: str) -> APIClient:
    client = APIClient()
    client.force_login(services.create_operator(name, password=PASSWORD, role=role, actor=COMMAND_LINE).user)
    return client


@pytest.fixture
def olga(db) -> APIClient:
    return signed_in("olga", "operator")


@pytest.fixture
def paul(db) -> APIClient:
    return signed_in("paul", "auditor")


@pytest.fixture
def nick(db) -> APIClient:
    client = APIClient()
    client.force_login(User.objects.create_user("nick"))
    return client


@pytest.fixture
def acme(db) -> Tenant:
    return services.create_tenant("Acme", actor=COMMAND_LINE)


@pytest.fixture
def rival(db) -> Tenant:
    return services.create_tenant("Rival", actor=COMMAND_LINE)
