import io

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from tenants import services
from tenants.demo import ensure_demo
from tenants.models import ApiKey, Tenant

pytestmark = pytest.mark.django_db


def run(*arguments: str) -> str:
    out = io.StringIO()
    call_command(*arguments, stdout=out)
    return out.getvalue().strip()


def test_create_tenant_prints_its_id_and_sets_limits():
    printed = run("create_tenant", "Acme", "--cache-policy", "isolated", "--tokens-per-day", "5000", "--weight", "2")
    tenant = Tenant.objects.get(name="Acme")
    assert printed == str(tenant.pk)
    assert (tenant.cache_policy, tenant.tokens_per_day, tenant.weight) == ("isolated", 5000, 2.0)


def test_create_tenant_joins_a_trust_group_by_name():
    run("create_tenant", "Acme", "--cache-policy", "shared", "--trust-group", "friends")
    run("create_tenant", "Rival", "--cache-policy", "shared", "--trust-group", "friends")
    assert Tenant.objects.filter(trust_group__name="friends").count() == 2


def test_create_key_prints_the_key_alone(acme):
    printed = run("create_key", "Acme", "--requests-per-minute", "60", "--allowed-models", "smollm2")
    key = ApiKey.objects.get(digest=services.digest(printed))
    assert (key.tenant, key.project.name, key.requests_per_minute, key.allowed_models) == (acme, "default", 60, ["smollm2"])
    assert services.digest(run("create_key", str(acme.pk))) in ApiKey.objects.values_list("digest", flat=True)


def test_revoke_key_takes_an_id_or_a_prefix(acme_key):
    assert "revoked" in run("revoke_key", acme_key.prefix)
    acme_key.refresh_from_db()
    assert acme_key.revoked_at is not None
    assert "revoked" in run("revoke_key", str(acme_key.pk))


def test_a_tenant_is_suspended_resumed_and_purged_by_name(acme):
    assert run("suspend_tenant", "Acme") == "Tenant Acme is suspended."
    acme.refresh_from_db()
    assert acme.suspended_at is not None
    assert run("resume_tenant", "Acme") == "Tenant Acme is active."
    assert "epoch is 1" in run("purge_cache", "Acme")


def test_create_operator_prints_a_made_password_or_reads_one(monkeypatch):
    password = run("create_operator", "ada")
    assert len(password) == 20
    monkeypatch.setattr("sys.stdin", io.StringIO("correct horse battery\n"))
    assert "battery" not in run("create_operator", "bob", "--role", "auditor", "--password-stdin")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("create_key", "Nobody"), "There is no tenant named 'Nobody'."),
        (("create_key", "Acme", "--project", "nope"), "Tenant Acme has no project named 'nope'; it has default."),
        (("create_key", "Acme", "--in-flight", "0"), "in_flight: expected 1 to"),
        (("create_tenant", "Acme"), "there is already a tenant named Acme"),
        (("create_tenant", "B", "--cache-policy", "shared"), "needs a trust group"),
        (("revoke_key", "lg-nothing"), "There is no key with id or prefix 'lg-nothing'."),
        (("suspend_tenant", "5b1d9f0e-0000-4000-8000-000000000000"), "There is no tenant named"),
        (("create_operator", "a b"), "name: "),
    ],
)
def test_an_error_is_one_clear_line(acme, arguments, message):
    with pytest.raises(CommandError, match=message.replace("(", r"\(")) as error:
        run(*arguments)
    assert "\n" not in str(error.value)
    assert error.value.returncode == 1


def test_the_demo_is_made_once():
    kept = []
    made = ensure_demo(keep=kept.append)
    assert kept == [made]
    assert ApiKey.objects.get(digest=services.digest(made.api_key)).tenant.name == "Demo"
    assert made.api_key not in repr(made)
    assert ensure_demo(keep=kept.append) is None
    assert len(kept) == 1


@pytest.mark.django_db(transaction=True)
def test_a_demo_whose_credentials_could_not_be_kept_is_made_again():
    def full_disk(_):
        raise OSError("no space left on device")

    with pytest.raises(OSError):
        ensure_demo(keep=full_disk)
    assert not Tenant.objects.exists()
    assert ensure_demo() is not None
