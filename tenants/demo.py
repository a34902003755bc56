"""What a first start finds: someone who can sign in, and a tenant with a key."""

from collections.abc import Callable
from dataclasses import dataclass, field

from django.contrib.auth.models import User
from django.db import connection, transaction

from tenants import services
from tenants.models import Tenant

OPERATOR = "operator"
TENANT = "Demo"
KEY_LIMITS = {
    "requests_per_minute": 600,
    "tokens_per_minute": 1_000_000,
    "in_flight": 64,
    "tokens_per_day": 20_000_000,
}
_ONE_AT_A_TIME = 0x10C6A7E


@dataclass(frozen=True, kw_only=True)
class DemoCredentials:
    operator: str
    password: str = field(repr=False)
    api_key: str = field(repr=False)


@transaction.atomic
def ensure_demo(*, keep: Callable[[DemoCredentials], None] | None = None) -> DemoCredentials | None:
    """Create operator and demo tenant in an installation that has neither anyone to sign in nor a tenant; None in any other.

    `keep` stores the credentials before anything is committed: if it fails, the next start makes new ones.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [_ONE_AT_A_TIME])
    if User.objects.exists() or Tenant.objects.exists():
        return None
    actor = services.Actor(name="first start")
    operator = services.create_operator(OPERATOR, actor=actor)
    tenant = services.create_tenant(TENANT, actor=actor)
    project = tenant.projects.get(name=services.DEFAULT_PROJECT)
    created = services.create_key(project.pk, {"name": "demo", **KEY_LIMITS}, actor=actor)
    credentials = DemoCredentials(operator=OPERATOR, password=operator.password, api_key=created.secret)
    if keep is not None:
        keep(credentials)
    return credentials
