import json

import pytest
from rest_framework.test import APIClient

from tenants import services
from tenants.models import AccessChange, ApiKey, AuditEntry, Project, Tenant

pytestmark = pytest.mark.django_db


def post(client: APIClient, path: str, body: object | None = None):
    return client.post(f"/api/v1/{path}", {} if body is None else body, format="json")


def patch(client: APIClient, path: str, body: object):
    return client.patch(f"/api/v1/{path}", body, format="json")


def get(client: APIClient, path: str, **query):
    return client.get(f"/api/v1/{path}", query)


def written() -> tuple[int, ...]:
    return tuple(model.objects.count() for model in (Tenant, Project, ApiKey, AuditEntry, AccessChange))


def project_of(tenant: Tenant) -> str:
    return str(tenant.projects.get().pk)


def test_a_tenant_is_created_with_its_limits_and_found_again(olga):
    created = post(olga, "tenants/", {"name": "Acme", "tokens_per_day": 5000, "weight": 2, "cache_policy": "isolated"})
    assert created.status_code == 201, created.content
    assert get(olga, f"tenants/{created.json()['id']}/").json() == created.json()
    assert created.json()["tokens_per_day"] == 5000
    assert created.json()["cache_policy"] == "isolated"
    assert [row["name"] for row in get(olga, "tenants/").json()["items"]] == ["Acme"]


def test_who_acted_and_from_where_is_recorded(olga, acme):
    olga.patch(f"/api/v1/tenants/{acme.pk}/", {"weight": 3}, format="json", REMOTE_ADDR="192.0.2.9")
    entry = AuditEntry.objects.latest("pk")
    assert (entry.actor, entry.address, entry.action) == ("olga", "192.0.2.9", "tenant.update")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"name": "B", "token_per_day": 5}, "token_per_day"),
        ({"name": "B", "limits": {"tokens_per_day": 5}}, "limits"),
        ({"name": "B", "id": "5b1d9f0e-0000-4000-8000-000000000000"}, "id"),
        ({"name": "B", "cache_epoch": 9}, "cache_epoch"),
        ({"name": "B", "suspended_at": None}, "suspended_at"),
        ({"name": "B", "tokens_per_day": 0}, "tokens_per_day"),
        ({"name": "B", "tokens_per_day": "many"}, "tokens_per_day"),
        ({"name": "B", "tokens_per_day": True}, "tokens_per_day"),
        ({"name": "B", "tokens_per_day": 10**16}, "tokens_per_day"),
        ({"name": "B", "cache_policy": "public"}, "cache_policy"),
        ({"name": "B", "cache_policy": "shared"}, "trust_group"),
        ({"name": "B", "trust_group": "5b1d9f0e-0000-4000-8000-000000000000"}, "trust_group"),
        ({"name": "B\x00"}, "name"),
        ({"name": ""}, "name"),
        ({}, "name"),
        ({"name": "Acme"}, "name"),
        ([], "non_field_errors"),
    ],
)
def test_a_field_that_would_be_ignored_or_is_wrong_is_named_and_nothing_is_written(olga, acme, body, field):
    before = written()
    response = post(olga, "tenants/", body)
    assert response.status_code == 400, response.content
    assert list(response.json()) == [field]
    assert written() == before


@pytest.mark.parametrize("field", ["max_budget", "budget", "tpm", "tenant", "digest", "prefix", "secret"])
def test_a_key_with_a_misnamed_limit_is_refused(olga, acme, field):
    response = post(olga, "keys/", {"project": project_of(acme), field: 5})
    assert (response.status_code, list(response.json())) == (400, [field])
    assert not ApiKey.objects.exists()


@pytest.mark.parametrize("path", ["tenants/", "projects/", "keys/", "audit/", "trust-groups/"])
def test_a_misspelt_filter_is_refused_rather_than_listing_everything(olga, path):
    response = get(olga, path, tenant_name="Acme")
    assert (response.status_code, list(response.json())) == (400, ["tenant_name"])
    assert list(olga.get(f"/api/v1/{path}?page_size=1&page_size=2").json()) == ["page_size"]
    assert list(get(olga, path, after="zzz").json()) == ["after"]


@pytest.mark.parametrize("body", ['{"name": ', '{"name": ' + "[" * 100_000], ids=["cut short", "nested deeply"])
def test_malformed_json_is_a_400(olga, body):
    response = olga.post("/api/v1/tenants/", body, content_type="application/json")
    assert response.status_code == 400


def test_a_form_is_not_taken(olga):
    assert olga.post("/api/v1/tenants/", {"name": "B"}, format="multipart").status_code == 415


def test_the_secret_is_only_in_the_answer_to_creation_and_rotation(olga, paul, acme):
    created = post(olga, "keys/", {"project": project_of(acme), "name": "ci", "in_flight": 2})
    assert created.status_code == 201
    secret, key = created.json()["secret"], created.json()["key"]
    assert services.digest(secret) == ApiKey.objects.get(pk=key["id"]).digest
    rotated = post(olga, f"keys/{key['id']}/rotate/", {"grace_s": 60}).json()
    assert rotated["secret"] != secret
    hidden = [secret, rotated["secret"], services.digest(secret), services.digest(rotated["secret"])]
    for reader in (olga, paul):
        for path in (f"keys/{key['id']}/", f"keys/{rotated['key']['id']}/", "keys/", "audit/", f"tenants/{acme.pk}/"):
            text = get(reader, path).content.decode()
            assert not [secret for secret in hidden if secret in text]
            assert '"digest"' not in text
            assert '"secret"' not in text
    assert (key["state"], key["created_by"], key["in_flight"]) == ("active", "olga", 2)


def test_a_key_is_revoked_and_stays_listed_as_revoked(olga, acme):
    key_id = post(olga, "keys/", {"project": project_of(acme)}).json()["key"]["id"]
    assert post(olga, f"keys/{key_id}/revoke/").json()["state"] == "revoked"
    assert get(olga, "keys/", state="active").json()["items"] == []
    assert [row["id"] for row in get(olga, "keys/", state="revoked").json()["items"]] == [key_id]
    assert post(olga, f"keys/{key_id}/rotate/").status_code == 409
    assert olga.delete(f"/api/v1/keys/{key_id}/").status_code == 405


def test_a_key_belongs_to_its_projects_tenant_whoever_made_it(olga, acme, rival):
    key = post(olga, "keys/", {"project": project_of(acme)}).json()["key"]
    assert key["tenant"] == str(acme.pk)
    assert get(olga, "keys/", tenant=rival.pk).json()["items"] == []
    moved = patch(olga, f"keys/{key['id']}/", {"project": project_of(rival)})
    assert (moved.status_code, list(moved.json())) == (400, ["project"])


def test_projects_are_made_changed_and_suspended(olga, acme, rival):
    created = post(olga, "projects/", {"tenant": str(acme.pk), "name": "search", "tokens_per_minute": 100})
    assert created.status_code == 201
    path = f"projects/{created.json()['id']}/"
    assert patch(olga, path, {"tokens_per_minute": None}).json()["tokens_per_minute"] is None
    assert post(olga, path + "suspend/").json()["suspended_at"] is not None
    assert post(olga, path + "resume/").json()["suspended_at"] is None
    assert {row["tenant"] for row in get(olga, "projects/", tenant=acme.pk).json()["items"]} == {str(acme.pk)}
    assert list(patch(olga, path, {"name": "default"}).json()) == ["name"]


def test_the_cache_policy_moves_a_tenant_into_a_trust_group(olga, acme):
    group = post(olga, "trust-groups/", {"name": "friends"}).json()
    shared = olga.put(f"/api/v1/tenants/{acme.pk}/cache-policy/", {"cache_policy": "shared", "trust_group": group["id"]}, format="json")
    assert (shared.json()["trust_group"], shared.json()["cache_epoch"]) == (group["id"], 1)
    assert post(olga, f"tenants/{acme.pk}/purge-cache/").json()["cache_epoch"] == 2
    refused = olga.delete(f"/api/v1/trust-groups/{group['id']}/")
    assert (refused.status_code, "1 tenants" in refused.json()["detail"]) == (409, True)
    assert get(olga, "trust-groups/").json()["items"][0]["member_count"] == 1


def test_a_tenant_is_suspended_and_resumed(olga, acme):
    assert post(olga, f"tenants/{acme.pk}/suspend/").json()["suspended_at"] is not None
    assert [row["name"] for row in get(olga, "tenants/", state="suspended").json()["items"]] == ["Acme"]
    assert post(olga, f"tenants/{acme.pk}/resume/").json()["suspended_at"] is None


def test_lists_are_paged_to_the_end(olga):
    for number in range(5):
        post(olga, "tenants/", {"name": f"T{number}"})
    names, query = [], {"page_size": 2}
    while True:
        page = get(olga, "tenants/", **query).json()
        names += [row["name"] for row in page["items"]]
        if page["next"] is None:
            break
        query["after"] = page["next"]
    assert names == [f"T{number}" for number in range(5)]


EVERY_WRITE = [
    ("post", "tenants/", {"name": "B"}),
    ("patch", "tenants/{tenant}/", {"weight": 2}),
    ("put", "tenants/{tenant}/cache-policy/", {"cache_policy": "off"}),
    ("post", "tenants/{tenant}/purge-cache/", {}),
    ("post", "tenants/{tenant}/suspend/", {}),
    ("post", "tenants/{tenant}/resume/", {}),
    ("post", "projects/", {"tenant": "{tenant}", "name": "p"}),
    ("patch", "projects/{project}/", {"name": "p"}),
    ("post", "projects/{project}/suspend/", {}),
    ("post", "projects/{project}/resume/", {}),
    ("post", "keys/", {"project": "{project}"}),
    ("patch", "keys/{key}/", {"name": "k"}),
    ("post", "keys/{key}/rotate/", {}),
    ("post", "keys/{key}/revoke/", {}),
    ("post", "trust-groups/", {"name": "g"}),
    ("patch", "trust-groups/{group}/", {"name": "g2"}),
    ("delete", "trust-groups/{group}/", {}),
]
EVERY_READ = ["tenants/", "tenants/{tenant}/", "projects/", "projects/{project}/", "keys/", "keys/{key}/", "audit/", "trust-groups/"]


@pytest.fixture
def things(acme) -> dict[str, str]:
    actor = services.Actor(name="set-up")
    project = acme.projects.get()
    return {
        "tenant": str(acme.pk),
        "project": str(project.pk),
        "key": str(services.create_key(project.pk, actor=actor).key.pk),
        "group": str(services.create_trust_group("group", actor=actor).pk),
    }


def filled(template: object, things: dict[str, str]) -> object:
    text = json.dumps(template)
    for name, value in things.items():
        text = text.replace(f"{{{name}}}", value)
    return json.loads(text)


def test_the_list_of_writes_under_test_is_complete():
    from gateway.rest.schema import document

    described = {
        (method, path)
        for path, item in document()["paths"].items()
        for method in item
        if method != "get" and not path.endswith("/session/")
    }
    assert len(described) == len(EVERY_WRITE)


@pytest.mark.parametrize(("method", "path", "body"), EVERY_WRITE, ids=lambda value: value if isinstance(value, str) else "")
def test_an_auditor_reads_everything_and_changes_nothing(paul, nick, things, method, path, body):
    before = written()
    for client, status in ((paul, 403), (nick, 403), (APIClient(), 403)):
        response = getattr(client, method)(f"/api/v1/{filled(path, things)}", filled(body, things), format="json")
        assert response.status_code == status
    assert written() == before


@pytest.mark.parametrize("path", EVERY_READ)
def test_only_operators_and_auditors_read(olga, paul, nick, things, path):
    for client, status in ((olga, 200), (paul, 200), (nick, 403), (APIClient(), 403)):
        assert get(client, str(filled(path, things))).status_code == status


@pytest.mark.parametrize(("method", "path", "body"), EVERY_WRITE, ids=lambda value: value if isinstance(value, str) else "")
def test_an_operator_may_do_all_of_it(olga, things, method, path, body):
    response = getattr(olga, method)(f"/api/v1/{filled(path, things)}", filled(body, things), format="json")
    assert response.status_code in (200, 201, 204), response.content


@pytest.mark.parametrize("header", ["Bearer {secret}", "Basic b2xnYTpjb3JyZWN0", "Bearer ' OR '1'='1", "Token {secret}"])
def test_a_tenants_key_opens_nothing_here(acme, header):
    secret = services.create_key(acme.projects.get().pk, actor=services.Actor(name="set-up")).secret
    client = APIClient(HTTP_AUTHORIZATION=header.format(secret=secret))
    for path in ("tenants/", "keys/", "audit/"):
        assert get(client, path).status_code == 403


@pytest.mark.parametrize("kind", ["tenants", "projects", "keys", "trust-groups"])
def test_what_does_not_exist_is_a_404(olga, kind):
    assert get(olga, f"{kind}/5b1d9f0e-0000-4000-8000-000000000000/").status_code == 404
    assert get(olga, f"{kind}/1 OR 1=1/").status_code == 404


def test_the_audit_trail_is_filtered_and_read_only(olga, acme, rival):
    services.suspend_tenant(acme.pk, actor=services.Actor(name="eve"))
    assert [row["action"] for row in get(olga, "audit/", tenant=acme.pk, actor="eve").json()["items"]] == ["tenant.suspend"]
    assert post(olga, "audit/", {}).status_code == 405
    assert olga.delete("/api/v1/audit/1/").status_code == 404
