"""What the forms do: each change is the service's, each error stands beside its field."""

from datetime import timedelta

import pytest
from django.urls import reverse
from django.utils import timezone

from tenants import services
from tenants.models import ApiKey, AuditEntry, Tenant
from tests.gateway.console.conftest import COMMAND_LINE

pytestmark = pytest.mark.django_db

NEW = {"name": "Acme", "weight": "2", "priority": "1", "time_zone": "UTC", "cache_policy": "tenant"}


def text(response) -> str:
    return response.content.decode()


def test_a_tenant_is_created_with_limits_and_its_page_is_shown(olga):
    response = olga.post(
        reverse("console:create-tenant"), {**NEW, "tokens_per_day": "5000", "allowed_models": "smollm2, llama"}, follow=True
    )
    tenant = Tenant.objects.get(name="Acme")
    assert (tenant.weight, tenant.tokens_per_day, tenant.allowed_models) == (2.0, 5000, ["smollm2", "llama"])
    assert "Tenant Acme was created" in text(response)
    assert AuditEntry.objects.filter(actor="olga", action="tenant.create", address="127.0.0.1").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": ""}, "This field is required."),
        ({"name": "Taken"}, "There is already a tenant named Taken."),
        ({"tokens_per_day": "0"}, "Expected 1 to 1000000000000000, got 0; to stop all calls, suspend instead."),
        ({"tokens_per_day": "many"}, "Enter a whole number."),
        ({"weight": "-1"}, "Expected 0.001 to 1000, got -1.0."),
        ({"weight": "nan"}, "Enter a number."),
        ({"time_zone": "Mars"}, "Expected a time zone such as UTC or Europe/Berlin."),
        ({"cache_policy": "shared"}, "The cache policy shared needs a trust group."),
        ({"cache_policy": "public"}, "Select a valid choice."),
    ],
)
def test_an_error_stands_beside_its_field_and_nothing_is_saved(olga, change, message):
    services.create_tenant("Taken", actor=COMMAND_LINE)
    response = olga.post(reverse("console:create-tenant"), {**NEW, **change})
    assert message in text(response)
    assert "Nothing was saved." in text(response)
    assert Tenant.objects.count() == 1


def test_settings_policy_and_suspension_of_a_tenant(olga, acme):
    olga.post(reverse("console:update-tenant", args=[acme.pk]), {**NEW, "name": "Acme Ltd", "in_flight": "4"})
    olga.post(reverse("console:cache-policy", args=[acme.pk]), {"cache_policy": "isolated", "trust_group": ""})
    olga.post(reverse("console:purge-cache", args=[acme.pk]))
    acme.refresh_from_db()
    assert (acme.name, acme.in_flight, acme.cache_policy, acme.cache_epoch) == ("Acme Ltd", 4, "isolated", 2)
    assert "New calls with any of its 0 working keys" in text(olga.get(reverse("console:suspend-tenant", args=[acme.pk])))
    page = olga.post(reverse("console:suspend-tenant", args=[acme.pk]), follow=True)
    assert "Acme Ltd is suspended since" in text(page)
    olga.post(reverse("console:resume-tenant", args=[acme.pk]))
    acme.refresh_from_db()
    assert acme.suspended_at is None


def test_emptying_a_limit_lifts_it(olga, acme):
    services.update_tenant(acme.pk, {"tokens_per_day": 5}, actor=COMMAND_LINE)
    olga.post(reverse("console:update-tenant", args=[acme.pk]), {**NEW, "tokens_per_day": ""})
    acme.refresh_from_db()
    assert acme.tokens_per_day is None


def test_a_wrong_value_on_a_tenants_page_keeps_what_was_typed(olga, acme):
    response = olga.post(reverse("console:update-tenant", args=[acme.pk]), {**NEW, "priority": "77"})
    assert response.status_code == 422
    assert "Expected 0 to 9, got 77." in text(response)
    assert 'value="77"' in text(response)


def test_the_secret_is_shown_by_the_answer_to_creation_and_nowhere_else(olga, acme):
    project = acme.projects.get()
    created = olga.post(reverse("console:create-key"), {"project": project.pk, "name": "ci", "expires_at": "", "in_flight": "2"})
    key = ApiKey.objects.get()
    secret = created.context["secret"]
    assert key.digest == services.digest(secret)
    assert secret in text(created)
    assert "no-store" in created.headers["Cache-Control"]
    assert (key.name, key.in_flight, key.created_by.username) == ("ci", 2, "olga")
    for address in (
        reverse("console:key", args=[key.pk]),
        reverse("console:keys"),
        reverse("console:audit"),
        reverse("console:create-key"),
    ):
        assert secret not in text(olga.get(address))
    session = olga.session
    assert secret not in str(dict(session))


def test_a_key_is_rotated_and_revoked(olga, acme):
    old = services.create_key(acme.projects.get().pk, {"name": "ci"}, actor=COMMAND_LINE).key
    rotated = olga.post(reverse("console:rotate-key", args=[old.pk]), {"grace": "3600"})
    assert rotated.context["secret"] in text(rotated)
    old.refresh_from_db()
    assert timezone.now() < old.expires_at <= timezone.now() + timedelta(hours=1)
    olga.post(reverse("console:revoke-key", args=[old.pk]))
    old.refresh_from_db()
    assert old.revoked_at is not None
    refused = olga.post(reverse("console:rotate-key", args=[old.pk]), {"grace": "3600"})
    assert "was revoked. Create a new key instead." in text(refused)


def test_a_keys_untouched_expiry_is_kept_to_the_second(olga, acme):
    expiry = timezone.now() + timedelta(days=3, seconds=17)
    key = services.create_key(acme.projects.get().pk, {"expires_at": expiry}, actor=COMMAND_LINE).key
    shown = f"{expiry:%Y-%m-%dT%H:%M}"
    assert shown in text(olga.get(reverse("console:key", args=[key.pk])))
    olga.post(reverse("console:key", args=[key.pk]), {"name": "renamed", "expires_at": shown})
    key.refresh_from_db()
    assert (key.name, key.expires_at) == ("renamed", expiry)


def test_projects_are_made_changed_and_suspended(olga, acme):
    olga.post(reverse("console:create-project", args=[acme.pk]), {"name": "search", "tokens_per_minute": "100"})
    project = acme.projects.get(name="search")
    assert "already has a project named search" in text(olga.post(reverse("console:create-project", args=[acme.pk]), {"name": "search"}))
    olga.post(reverse("console:project", args=[project.pk]), {"name": "search", "tokens_per_minute": ""})
    olga.post(reverse("console:suspend-project", args=[project.pk]))
    project.refresh_from_db()
    assert (project.tokens_per_minute, project.suspended_at is not None) == (None, True)
    olga.post(reverse("console:resume-project", args=[project.pk]))
    project.refresh_from_db()
    assert project.suspended_at is None


def test_search_and_filters_live_in_the_address_and_empty_lists_say_why(olga, acme, rival):
    services.create_key(acme.projects.get().pk, {"name": "production"}, actor=COMMAND_LINE)
    services.create_key(rival.projects.get().pk, {"name": "staging"}, actor=COMMAND_LINE)
    assert "staging" not in text(olga.get("/console/keys/", {"search": "prod"}))
    assert "production" not in text(olga.get("/console/keys/", {"tenant": rival.pk}))
    assert "2 filters hide every key." in text(olga.get("/console/keys/", {"search": "prod", "state": "revoked"}))
    assert "1 filter hides every tenant." in text(olga.get("/console/tenants/", {"search": "nothing"}))
    assert "<strong>1 filter hides every entry.</strong>" in text(olga.get("/console/audit/", {"actor": "nobody"}))
    assert olga.get("/console/keys/", {"search": "a\x00b", "state": "odd", "tenant": "x", "after": "x"}).status_code == 200


def test_a_name_with_markup_is_shown_as_text(olga):
    services.create_tenant("<script>alert(1)</script>", actor=COMMAND_LINE)
    for address in ("/console/tenants/", "/console/audit/", "/console/keys/new/"):
        assert "<script>alert" not in text(olga.get(address))


def test_long_lists_are_paged_to_the_end(olga):
    for number in range(60):
        services.create_tenant(f"T{number:02}", actor=COMMAND_LINE)
    first = olga.get("/console/tenants/")
    assert "60 tenants" in text(first)
    second = olga.get("/console/tenants/", {"after": first.context["next"]})
    assert "T59" in text(second)
    assert "T00" not in text(second)
    assert second.context["next"] is None
