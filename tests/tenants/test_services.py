import hashlib
import uuid
from datetime import timedelta

import pytest
from django.utils import timezone

from tenants import services
from tenants.errors import Invalid, NotFound, Refused, Taken
from tenants.models import AccessChange, ApiKey, AuditEntry, Project, Tenant, TrustGroup
from tenants.signals import access_changed

pytestmark = pytest.mark.django_db


@pytest.fixture
def announced():
    """Every change that was announced, in order."""
    heard: list[tuple[str, uuid.UUID]] = []

    def listen(changes, **_):
        heard.extend(changes)

    access_changed.connect(listen)
    yield heard
    access_changed.disconnect(listen)


def written() -> tuple[int, int, int, int, int]:
    return tuple(model.objects.count() for model in (Tenant, Project, ApiKey, AuditEntry, AccessChange))


def outbox() -> set[tuple[str, uuid.UUID]]:
    return set(AccessChange.objects.values_list("kind", "target"))


def last_entry() -> AuditEntry:
    return AuditEntry.objects.latest("pk")


def test_a_new_tenant_has_a_default_project_and_admission_is_told_of_both(operator, announced, django_capture_on_commit_callbacks):
    with django_capture_on_commit_callbacks(execute=True):
        tenant = services.create_tenant("Acme", {"weight": 2, "tokens_per_day": 5000}, actor=operator)
    project = tenant.projects.get()
    assert (tenant.weight, tenant.tokens_per_day, project.name) == (2.0, 5000, "default")
    assert outbox() == {("tenant", tenant.pk), ("project", project.pk)}
    assert announced == [("tenant", tenant.pk), ("project", project.pk)]


def test_nothing_is_announced_before_the_commit(operator, announced, django_capture_on_commit_callbacks):
    with django_capture_on_commit_callbacks(execute=False):
        services.create_tenant("Acme", actor=operator)
        assert announced == []


def test_an_audit_entry_says_who_from_where_and_what_changed(acme, operator):
    services.update_tenant(acme.pk, {"tokens_per_day": 9000, "weight": 1.0}, actor=operator)
    entry = last_entry()
    assert (entry.actor, entry.address, entry.action, entry.tenant) == ("olga", "192.0.2.7", "tenant.update", acme)
    assert (entry.before, entry.after) == ({"tokens_per_day": None}, {"tokens_per_day": 9000})


def test_an_update_that_changes_nothing_writes_nothing(acme, operator):
    before = written()
    services.update_tenant(acme.pk, {"weight": 1.0, "name": "Acme"}, actor=operator)
    assert written() == before


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"name": " "}, "name"),
        ({"name": "a\nb"}, "name"),
        ({"name": "x" * 101}, "name"),
        ({"weight": 0}, "weight"),
        ({"weight": float("nan")}, "weight"),
        ({"weight": True}, "weight"),
        ({"priority": 10}, "priority"),
        ({"time_zone": "Mars/Olympus"}, "time_zone"),
        ({"requests_per_minute": 0}, "requests_per_minute"),
        ({"requests_per_minute": -5}, "requests_per_minute"),
        ({"tokens_per_day": 1.5}, "tokens_per_day"),
        ({"tokens_per_month": 2**60}, "tokens_per_month"),
        ({"in_flight": "10"}, "in_flight"),
        ({"allowed_models": "all"}, "allowed_models"),
        ({"allowed_models": [""]}, "allowed_models"),
        ({"budget": 5}, "budget"),
        ({"cache_epoch": 5}, "cache_epoch"),
        ({"suspended_at": None}, "suspended_at"),
    ],
)
def test_a_wrong_or_unknown_field_is_named_and_nothing_changes(acme, operator, changes, field):
    before = written()
    with pytest.raises(Invalid) as refusal:
        services.update_tenant(acme.pk, {"tokens_per_minute": 100, **changes}, actor=operator)
    assert list(refusal.value.errors) == [field]
    assert written() == before
    acme.refresh_from_db()
    assert acme.tokens_per_minute is None


def test_a_taken_name_is_refused_and_nothing_changes(acme, rival, operator):
    before = written()
    with pytest.raises(Taken):
        services.create_tenant("Acme", actor=operator)
    with pytest.raises(Taken):
        services.update_tenant(rival.pk, {"name": "Acme"}, actor=operator)
    with pytest.raises(Taken):
        services.create_project(acme.pk, "default", actor=operator)
    assert written() == before


def test_two_tenants_may_name_their_projects_alike(acme, rival, operator):
    services.create_project(acme.pk, "search", actor=operator)
    services.create_project(rival.pk, "search", actor=operator)


def test_suspending_twice_is_recorded_once(acme, operator):
    first = services.suspend_tenant(acme.pk, actor=operator)
    before = written()
    assert services.suspend_tenant(acme.pk, actor=operator).suspended_at == first.suspended_at
    assert written() == before
    assert services.resume_tenant(acme.pk, actor=operator).suspended_at is None
    assert last_entry().action == "tenant.resume"


def test_a_project_can_be_suspended_and_resumed(acme_project, operator):
    assert services.suspend_project(acme_project.pk, actor=operator).suspended_at is not None
    assert services.resume_project(acme_project.pk, actor=operator).suspended_at is None
    assert ("project", acme_project.pk) in outbox()


def test_a_key_is_shown_once_and_stored_as_its_digest(acme_project, operator):
    created = services.create_key(acme_project.pk, {"name": "ci", "in_flight": 3}, actor=operator)
    assert created.secret.startswith("lg-")
    assert len(created.secret) == 3 + 43
    key = ApiKey.objects.get(pk=created.key.pk)
    assert key.digest == hashlib.sha256(created.secret.encode()).hexdigest()
    assert created.secret.startswith(key.prefix)
    assert created.secret not in repr(created)
    assert ("key", key.pk) in outbox()


def test_neither_secret_nor_digest_reaches_the_audit_trail(acme_project, operator):
    created = services.create_key(acme_project.pk, actor=operator)
    rotated = services.rotate_key(created.key.pk, grace=timedelta(0), actor=operator)
    trail = str(list(AuditEntry.objects.values()))
    for hidden in (created.secret, rotated.secret, created.key.digest, rotated.key.digest):
        assert hidden not in trail


def test_a_rotated_key_works_through_its_grace_and_keeps_its_settings(acme_project, operator):
    old = services.create_key(acme_project.pk, {"name": "ci", "tokens_per_minute": 500}, actor=operator).key
    asked_at = timezone.now()
    new = services.rotate_key(old.pk, grace=timedelta(hours=1), actor=operator).key
    old.refresh_from_db()
    assert old.revoked_at is None
    assert asked_at + timedelta(hours=1) <= old.expires_at <= timezone.now() + timedelta(hours=1)
    assert (new.name, new.tokens_per_minute, new.project_id, new.expires_at) == ("ci", 500, old.project_id, None)
    assert new.digest != old.digest
    assert {("key", old.pk), ("key", new.pk)} <= outbox()


def test_rotation_never_lengthens_the_old_keys_life(acme_project, operator):
    expiry = timezone.now() + timedelta(minutes=5)
    old = services.create_key(acme_project.pk, {"expires_at": expiry}, actor=operator).key
    new = services.rotate_key(old.pk, grace=timedelta(days=1), actor=operator).key
    old.refresh_from_db()
    assert old.expires_at == expiry
    assert new.expires_at > timezone.now()


def test_rotation_without_grace_revokes_the_old_key(acme_key, operator):
    services.rotate_key(acme_key.pk, grace=timedelta(0), actor=operator)
    acme_key.refresh_from_db()
    assert acme_key.revoked_at is not None


@pytest.mark.parametrize("grace", [timedelta(days=31), timedelta(seconds=-1)])
def test_a_grace_out_of_bounds_is_refused(acme_key, operator, grace):
    before = written()
    with pytest.raises(Invalid, match="grace"):
        services.rotate_key(acme_key.pk, grace=grace, actor=operator)
    assert written() == before


def test_a_revoked_key_stays_revoked(acme_key, operator):
    revoked = services.revoke_key(acme_key.pk, actor=operator)
    before = written()
    assert services.revoke_key(acme_key.pk, actor=operator).revoked_at == revoked.revoked_at
    with pytest.raises(Refused):
        services.rotate_key(acme_key.pk, grace=timedelta(hours=1), actor=operator)
    with pytest.raises(Refused):
        services.update_key(acme_key.pk, {"name": "back"}, actor=operator)
    assert written() == before


def test_a_key_cannot_be_made_already_expired(acme_project, operator):
    with pytest.raises(Invalid, match="expires_at"):
        services.create_key(acme_project.pk, {"expires_at": timezone.now() - timedelta(seconds=1)}, actor=operator)


def test_what_does_not_exist_is_not_found(operator, db):
    nowhere = uuid.uuid4()
    for write in (
        lambda: services.update_tenant(nowhere, {}, actor=operator),
        lambda: services.suspend_tenant(nowhere, actor=operator),
        lambda: services.create_project(nowhere, "p", actor=operator),
        lambda: services.suspend_project(nowhere, actor=operator),
        lambda: services.create_key(nowhere, actor=operator),
        lambda: services.revoke_key(nowhere, actor=operator),
        lambda: services.update_trust_group(nowhere, {"name": "g"}, actor=operator),
    ):
        with pytest.raises(NotFound):
            write()


def test_a_new_cache_policy_forgets_what_was_cached(acme, operator):
    assert services.set_cache_policy(acme.pk, "isolated", actor=operator).cache_epoch == 1
    assert services.set_cache_policy(acme.pk, "isolated", actor=operator).cache_epoch == 1
    assert services.purge_cache(acme.pk, actor=operator).cache_epoch == 2
    assert last_entry().action == "tenant.purge_cache"


def test_a_trust_group_goes_with_the_shared_policy_only(acme, operator):
    group = services.create_trust_group("friends", actor=operator)
    for policy, group_id in (("shared", None), ("tenant", group.pk), ("shared", uuid.uuid4())):
        with pytest.raises(Invalid, match="trust_group"):
            services.set_cache_policy(acme.pk, policy, trust_group_id=group_id, actor=operator)
    with pytest.raises(Invalid, match="cache_policy"):
        services.set_cache_policy(acme.pk, "public", actor=operator)


def test_members_of_a_trust_group_always_share_one_epoch_that_never_goes_back(acme, rival, operator):
    group = services.create_trust_group("friends", actor=operator)
    for _ in range(3):
        services.purge_cache(acme.pk, actor=operator)
    services.set_cache_policy(rival.pk, "shared", trust_group_id=group.pk, actor=operator)
    services.set_cache_policy(acme.pk, "shared", trust_group_id=group.pk, actor=operator)
    epochs = dict(group.tenants.values_list("name", "cache_epoch"))
    assert epochs == {"Acme": 4, "Rival": 4}
    AccessChange.objects.all().delete()
    services.purge_cache(rival.pk, actor=operator)
    assert set(group.tenants.values_list("cache_epoch", flat=True)) == {5}
    assert outbox() == {("tenant", acme.pk), ("tenant", rival.pk)}
    services.set_cache_policy(rival.pk, "tenant", actor=operator)
    rival.refresh_from_db()
    assert rival.cache_epoch == 6


def test_who_leaves_a_trust_group_takes_its_cached_prefixes_along(acme, rival, operator):
    group = services.create_trust_group("friends", actor=operator)
    for tenant in (acme, rival):
        services.set_cache_policy(tenant.pk, "shared", trust_group_id=group.pk, actor=operator)
    before = group.tenants.get(pk=acme.pk).cache_epoch
    AccessChange.objects.all().delete()
    services.set_cache_policy(rival.pk, "tenant", actor=operator)
    assert group.tenants.get(pk=acme.pk).cache_epoch > before
    assert outbox() == {("tenant", acme.pk), ("tenant", rival.pk)}


def test_a_trust_group_that_was_empty_never_gets_a_purged_epoch_again(acme, rival, operator):
    group = services.create_trust_group("friends", actor=operator)
    services.set_cache_policy(acme.pk, "shared", trust_group_id=group.pk, actor=operator)
    seen = {services.purge_cache(acme.pk, actor=operator).cache_epoch for _ in range(3)}
    services.set_cache_policy(acme.pk, "tenant", actor=operator)
    joined = services.set_cache_policy(rival.pk, "shared", trust_group_id=group.pk, actor=operator)
    assert joined.cache_epoch > max(seen)


def test_a_trust_group_with_members_is_not_deleted(acme, operator):
    group = services.create_trust_group("friends", actor=operator)
    services.set_cache_policy(acme.pk, "shared", trust_group_id=group.pk, actor=operator)
    with pytest.raises(Refused, match="1 tenant"):
        services.delete_trust_group(group.pk, actor=operator)
    services.set_cache_policy(acme.pk, "off", actor=operator)
    services.delete_trust_group(group.pk, actor=operator)
    assert not TrustGroup.objects.exists()


def test_a_listener_that_fails_does_not_undo_the_change(acme, operator, django_capture_on_commit_callbacks, caplog):
    def fail(**_):
        raise ConnectionError("Valkey is away")

    access_changed.connect(fail)
    try:
        with django_capture_on_commit_callbacks(execute=True):
            services.suspend_tenant(acme.pk, actor=operator)
    finally:
        access_changed.disconnect(fail)
    acme.refresh_from_db()
    assert acme.suspended_at is not None
    assert ("tenant", acme.pk) in outbox()
    assert "Valkey is away" in caplog.text


def test_an_operator_signs_in_and_an_auditor_only_reads(operator):
    created = services.create_operator("ada", actor=operator)
    assert created.user.check_password(created.password)
    assert created.user.is_staff
    auditor = services.create_operator("bob", role="auditor", actor=operator).user
    assert not auditor.is_staff
    assert auditor.groups.filter(name="auditor").exists()
    assert created.password not in str(list(AuditEntry.objects.values()))
    assert created.password not in repr(created)


@pytest.mark.parametrize(("name", "password", "field"), [("ada", "short", "password"), ("a b", None, "name"), ("", None, "name")])
def test_a_weak_password_or_odd_name_is_refused(operator, name, password, field):
    with pytest.raises(Invalid) as refusal:
        services.create_operator(name, password=password, actor=operator)
    assert list(refusal.value.errors) == [field]
