from datetime import timedelta

import pytest
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.django import TestCase

from tenants import selectors, services
from tenants.errors import Invalid, NotFound
from tenants.models import ApiKey, AuditEntry, Tenant
from tenants.services import Actor

pytestmark = pytest.mark.django_db


def all_pages(query, order, size):
    rows, after = [], ""
    while True:
        page = selectors.page(query, order, size=size, after=after)
        rows += page.rows
        if page.next is None:
            return rows
        after = page.next


class PagesTest(TestCase):
    @given(names=st.lists(st.sampled_from("abcdefgh"), min_size=0, max_size=12), size=st.integers(1, 5))
    def test_pages_hold_every_row_once_and_in_order(self, names, size):
        Tenant.objects.all().delete()
        Tenant.objects.bulk_create(Tenant(name=f"{name}{number}") for number, name in enumerate(names))
        rows = all_pages(selectors.tenants(), selectors.BY_NAME, size)
        assert [row.name for row in rows] == sorted(f"{name}{number}" for number, name in enumerate(names))


def test_pages_of_equal_times_lose_nothing(db):
    now = timezone.now()
    AuditEntry.objects.bulk_create(AuditEntry(actor="olga", action=f"a.{n}", target_kind="tenant", target_id="x") for n in range(7))
    AuditEntry.objects.update(at=now)
    rows = all_pages(selectors.audit_entries(), selectors.LATEST_FIRST, 2)
    assert [row.action for row in rows] == [f"a.{n}" for n in reversed(range(7))]


@pytest.mark.parametrize("cursor", ["x", "!!!!", "W10", "WyJhIl0", "WyJhIiwiYiJd", "bnVsbA", "WzEsMl0"])
def test_a_foreign_cursor_is_named(cursor):
    with pytest.raises(Invalid, match="after"):
        selectors.page(selectors.tenants(), selectors.BY_NAME, size=2, after=cursor)


def test_search_finds_by_part_of_a_name_or_the_whole_id(acme, rival):
    assert list(selectors.tenants(search="cm")) == [acme]
    assert list(selectors.tenants(search=str(rival.pk))) == [rival]
    assert not selectors.tenants(search="%")


def test_lists_narrowed_to_a_tenant_hold_nothing_of_its_rival(acme, rival, acme_key, operator):
    services.create_key(rival.projects.get().pk, actor=operator)
    assert list(selectors.keys(tenant=acme.pk)) == [acme_key]
    assert {entry.tenant for entry in selectors.audit_entries(tenant=acme.pk)} == {acme}
    assert {project.tenant for project in selectors.projects(tenant=acme.pk)} == {acme}
    with pytest.raises(NotFound):
        selectors.one(selectors.keys(tenant=rival.pk), acme_key.pk)


def test_every_key_is_in_exactly_the_state_it_says(acme_project):
    now = timezone.now()
    for index, (expires_at, revoked_at) in enumerate(
        (e, r) for e in (None, now - timedelta(days=1), now + timedelta(days=1), now + timedelta(days=99)) for r in (None, now)
    ):
        ApiKey.objects.create(
            tenant=acme_project.tenant, project=acme_project, digest=str(index), expires_at=expires_at, revoked_at=revoked_at
        )
    found = {state: set(selectors.keys(state=state)) for state in selectors.KEY_STATES}
    for key in ApiKey.objects.all():
        assert [state for state in selectors.KEY_STATES if key in found[state]] == [selectors.key_state(key, now)]


def test_audit_entries_are_found_by_action_or_its_kind(acme_key):
    actor = Actor(name="paul")
    services.revoke_key(acme_key.pk, actor=actor)
    assert [entry.action for entry in selectors.audit_entries(action="key").order_by("pk")] == ["key.create", "key.revoke"]
    assert selectors.audit_entries(action="key.revoke", actor="paul", target=str(acme_key.pk)).count() == 1
