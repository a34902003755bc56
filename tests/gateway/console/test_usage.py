"""Usage pages and export over the rollups that settlement wrote."""

import csv
import io
from datetime import UTC, datetime, timedelta

import pytest

from tenants import services
from tenants.ledger import settlement
from tests.gateway.console.conftest import COMMAND_LINE
from tests.tenants.ledger.events import event

pytestmark = pytest.mark.django_db


@pytest.fixture
def used(acme, rival):
    """Acme used 1 200 prompt tokens (300 cached) and 80 output tokens today and 10 prompt tokens five days ago; Rival 7 today."""
    now = datetime.now(UTC)
    settlement.make_partitions(first=(now - timedelta(days=40)).date(), months=3)
    made = {}
    for tenant in (acme, rival):
        project = tenant.projects.get()
        made[tenant] = {
            "tenant_id": tenant.pk,
            "project_id": project.pk,
            "key_id": services.create_key(project.pk, {"name": "=1+1"}, actor=COMMAND_LINE).key.pk,
        }
    settlement.insert(
        [
            event(at=now, prompt_tokens=1200, cached_tokens=300, computed_tokens=900, generated_tokens=80, billed_tokens=80, **made[acme]),
            event(at=now - timedelta(days=5), prompt_tokens=10, computed_tokens=10, model="large", **made[acme]),
            event(at=now, prompt_tokens=7, computed_tokens=7, **made[rival]),
        ]
    )
    return acme


def text(response) -> str:
    assert response.status_code == 200
    return response.content.decode().replace("\u00a0", " ")


def test_totals_and_groups_of_a_range(olga, used):
    html = text(olga.get("/console/usage/"))
    assert "1 217" in html  # prompt tokens of all
    assert html.index('<th scope="row">Acme') < html.index('<th scope="row">Rival')
    assert "2 tenants, most tokens first" in html
    week = olga.get("/console/usage/", {"days": "7", "group": "model", "tenant": used.pk})
    assert [(name, row.prompt_tokens) for name, row, _ in week.context["groups"]] == [("small", 1200), ("large", 10)]
    assert len(week.context["days"]) == 7


@pytest.mark.parametrize(
    ("group", "names"),
    [("tenant", ["Acme", "Rival"]), ("project", ["Acme / default", "Rival / default"]), ("model", ["small", "large"])],
)
def test_groups_are_called_what_people_call_them(olga, used, group, names):
    response = olga.get("/console/usage/", {"group": group})
    assert [name for name, _, _ in response.context["groups"]] == names


def test_keys_are_told_apart_by_tenant_first_characters_and_name(olga, used):
    key = used.keys.get()
    response = olga.get("/console/usage/", {"group": "key"})
    assert response.context["groups"][0][0] == f"Acme / {key.prefix}… (=1+1)"


def test_nothing_used_by_anybody_and_by_this_tenant_are_told_apart(olga, acme):
    assert "Nothing was used in these 30 days." in text(olga.get("/console/usage/"))
    assert "Acme used nothing in these 30 days." in text(olga.get("/console/usage/", {"tenant": acme.pk}))


def test_odd_filters_show_the_usual_range(olga, used):
    assert olga.get("/console/usage/", {"days": "x", "group": "planet", "tenant": "nobody"}).context["asked"].days == 30


def test_the_export_is_the_same_slice_and_no_formula(olga, used):
    response = olga.get("/console/usage.csv", {"group": "key", "tenant": used.pk})
    rows = list(csv.DictReader(io.StringIO(response.content.decode())))
    assert sum(int(row["prompt_tokens"]) for row in rows) == 1210
    assert sum(int(row["charged_tokens"]) for row in rows) == 1290
    assert len(rows) == 2
    assert response.headers["Content-Type"] == "text/csv; charset=utf-8"
    services.update_tenant(used.pk, {"name": "=cmd()"}, actor=COMMAND_LINE)
    assert "'=cmd()" in olga.get("/console/usage.csv").content.decode()


def test_the_overview_shows_todays_largest_tenants(olga, used):
    html = text(olga.get("/console/"))
    assert "2 requests, 1 287 tokens" in html


def test_usage_is_for_operators_and_auditors(client, nick, paul, used):
    for address in ("/console/usage/", "/console/usage.csv"):
        assert client.get(address).status_code == 302
        assert nick.get(address).status_code == 403
        assert paul.get(address).status_code == 200
