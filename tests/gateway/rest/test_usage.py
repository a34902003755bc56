from datetime import UTC, datetime, timedelta

import pytest

from tenants.ledger import settlement
from tests.tenants.ledger.events import event

pytestmark = pytest.mark.django_db
PATH = "/api/v1/usage/"


@pytest.fixture
def used(acme, rival):
    now = datetime.now(UTC)
    settlement.make_partitions(first=(now - timedelta(days=40)).date(), months=3)
    settlement.insert([event(at=now - timedelta(days=day), tenant_id=acme.pk, prompt_tokens=100, billed_tokens=5) for day in range(3)])
    settlement.insert([event(at=now, tenant_id=rival.pk, prompt_tokens=7)])


def test_usage_by_day_and_tenant_is_paged(olga, used, acme):
    rows, query = [], {"group_by": "tenant", "page_size": 2}
    while True:
        page = olga.get(PATH, query).json()
        rows += page["items"]
        if page["next"] is None:
            break
        query["after"] = page["next"]
    assert len(rows) == 4
    assert sum(row["charged_tokens"] for row in rows if row["group"] == str(acme.pk)) == 315


def test_totals_of_one_tenant_hold_nothing_of_its_rival(olga, used, rival):
    [total] = olga.get(PATH + "totals/", {"tenant": rival.pk}).json()
    assert (total["requests"], total["prompt_tokens"]) == (1, 7)
    groups = olga.get(PATH + "totals/", {"group_by": "tenant"}).json()
    assert [group["prompt_tokens"] for group in groups] == [300, 7]


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"tenant_id": "x"}, "tenant_id"),
        ({"group_by": "planet"}, "group_by"),
        ({"start": "yesterday"}, "start"),
        ({"start": "2026-02-02", "end": "2026-02-01"}, "start"),
        ({"after": "zzz"}, "after"),
        ({"bucket": "week"}, "bucket"),
    ],
)
def test_a_wrong_or_unknown_parameter_is_named(olga, used, query, field):
    response = olga.get(PATH, query)
    assert (response.status_code, list(response.json())) == (400, [field])


def test_usage_is_for_operators_and_auditors(olga, paul, nick, client, used):
    assert [reader.get(PATH).status_code for reader in (olga, paul, nick, client)] == [200, 200, 403, 403]
    assert paul.post(PATH, {}, format="json").status_code == 403
