"""Who a key belongs to: revoked, expired, suspended and unknown ones are refused at once, by every process."""

import asyncio
import hashlib
from datetime import timedelta

import pytest
from asgiref.sync import sync_to_async
from django.db import connections
from django.utils import timezone

from gateway.admission.control import AdmissionControl, digest_of
from gateway.admission.outcomes import Call, Granted, Refused
from gateway.admission.projection import Projection
from tenants import services
from tenants.models import ApiKey, Project
from tenants.services import Actor

OLGA = Actor(name="olga")
HOSTILE = [
    "' OR '1'='1",
    "'; DROP TABLE tenants_apikey; --",
    "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhZG1pbiJ9.",
    "*",
    "lg-*",
    "\0",
    "\ud800",
    "",
    "x" * 100_000,
    "\r\nGET lockgate:ready\r\n",
]


class Cast:
    """Acme with one key, and the two processes that it may call."""

    def __init__(self, redis, other, secret: str, key: ApiKey) -> None:
        self.redis = redis
        self.processes = [AdmissionControl(redis, secret=b"secret"), AdmissionControl(other, secret=b"secret")]
        self.secret = secret
        self.key = key

    async def outcomes(self) -> list[str]:
        """What each process answers, to admission and to authentication."""
        found = []
        for number, process in enumerate(self.processes):
            call = Call(
                digest=digest_of(self.secret), request_id=f"r{number}", model="small", endpoint="chat", prompt_tokens=1, max_tokens=1
            )
            admission = await process.admit(call)
            if isinstance(admission, Granted):
                await process.release(call.request_id)
            caller = await process.authenticate(call.digest)
            found.append(admission.code if isinstance(admission, Refused) else "granted")
            assert caller.code == found[-1] if isinstance(caller, Refused) else found[-1] in ("granted", "rate_limit_exceeded")
        return found


@pytest.fixture
async def cast(redis, redis_url, transactional_db):
    def create():
        tenant = services.create_tenant("Acme", actor=OLGA)
        return services.create_key(tenant.projects.get().pk, actor=OLGA)

    created = await sync_to_async(create)()
    await Projection(redis).ensure_ready()
    async with type(redis).from_url(redis_url) as other:
        cast = Cast(redis, other, created.secret, created.key)
        assert await cast.outcomes() == ["granted", "granted"]
        yield cast
    await sync_to_async(connections.close_all)()


@pytest.mark.django_db(transaction=True)
async def test_a_revoked_key_is_refused_by_all_on_its_next_call(cast):
    """G22: as soon as the operator's request returns, without a flusher."""
    await sync_to_async(services.revoke_key)(cast.key.pk, actor=OLGA)
    assert await cast.outcomes() == ["invalid_api_key"] * 2


@pytest.mark.django_db(transaction=True)
async def test_a_suspension_is_felt_at_once_and_ends_at_once(cast):
    for suspend, resume, target, code in (
        (services.suspend_tenant, services.resume_tenant, cast.key.tenant_id, "suspended"),
        (services.suspend_project, services.resume_project, cast.key.project_id, "suspended"),
    ):
        await sync_to_async(suspend)(target, actor=OLGA)
        assert await cast.outcomes() == [code] * 2
        await sync_to_async(resume)(target, actor=OLGA)
        assert await cast.outcomes() == ["granted"] * 2


@pytest.mark.django_db(transaction=True)
async def test_an_expired_key_is_refused_without_anybody_telling(cast):
    now = timezone.now()
    await ApiKey.objects.aupdate(expires_at=now + timedelta(hours=1))
    await Projection(cast.redis).write([("key", cast.key.pk)])
    assert await cast.outcomes() == ["granted"] * 2
    await ApiKey.objects.aupdate(expires_at=now)
    await Projection(cast.redis).write([("key", cast.key.pk)])
    assert await cast.outcomes() == ["invalid_api_key"] * 2


@pytest.mark.django_db(transaction=True)
async def test_a_rotated_key_works_for_its_grace_and_the_new_one_at_once(cast):
    rotated = await sync_to_async(services.rotate_key)(cast.key.pk, grace=timedelta(minutes=5), actor=OLGA)
    assert await cast.outcomes() == ["granted"] * 2
    cast.secret = rotated.secret
    assert await cast.outcomes() == ["granted"] * 2
    later = await sync_to_async(services.rotate_key)(rotated.key.pk, grace=timedelta(0), actor=OLGA)
    assert await cast.outcomes() == ["invalid_api_key"] * 2
    cast.secret = later.secret
    assert await cast.outcomes() == ["granted"] * 2


@pytest.mark.django_db(transaction=True)
async def test_a_key_that_was_deleted_by_hand_is_forgotten(cast):
    """G23"""
    await ApiKey.objects.filter(pk=cast.key.pk).adelete()
    await Projection(cast.redis).write_all()
    assert await cast.outcomes() == ["invalid_api_key"] * 2


@pytest.mark.django_db(transaction=True)
async def test_what_nobody_announced_comes_from_the_outbox(cast, monkeypatch):
    monkeypatch.setattr("gateway.admission.listeners._write", _unreachable)
    await sync_to_async(services.revoke_key)(cast.key.pk, actor=OLGA)
    assert await cast.outcomes() == ["granted"] * 2
    assert await Projection(cast.redis).replay_outbox() >= 1
    assert await cast.outcomes() == ["invalid_api_key"] * 2
    assert await Projection(cast.redis).replay_outbox() == 0


async def _unreachable(changes: object) -> None:
    raise OSError("Valkey is away")


@pytest.mark.django_db(transaction=True)
async def test_a_limit_is_projected_when_it_changes(cast):
    await sync_to_async(services.update_key)(cast.key.pk, {"requests_per_minute": 1}, actor=OLGA)
    call = Call(digest=digest_of(cast.secret), request_id="first", model="small", endpoint="chat", prompt_tokens=1, max_tokens=1)
    assert isinstance(await cast.processes[0].admit(call), Granted)
    assert await cast.outcomes() == ["rate_limit_exceeded"] * 2


@pytest.mark.parametrize("key", HOSTILE, ids=lambda key: repr(key)[:24])
async def test_a_key_is_only_ever_looked_up_by_its_digest(stage, key):
    """G39"""
    digest = digest_of(key)
    assert digest == hashlib.sha256(key.encode(errors="surrogatepass")).hexdigest()
    before = await stage.dump()
    caller = await stage.control.authenticate(digest)
    assert isinstance(caller, Refused)
    assert caller.code == "invalid_api_key"
    call = Call(digest=digest, request_id="r", model="small", endpoint="chat", prompt_tokens=1, max_tokens=1)
    assert (await stage.control.admit(call)).code == "invalid_api_key"
    assert await stage.control.limits(digest) is None
    assert await stage.dump() == before


@pytest.mark.parametrize("scope", ["key", "project", "tenant"])
async def test_a_model_has_to_be_allowed_at_every_scope(stage, scope):
    await stage.limit(scope, models="\nlarge\n")
    before = await stage.dump()
    refusal = await stage.admit()
    assert (refusal.code, refusal.scope) == ("model_not_allowed", scope)
    assert await stage.dump() == before
    await stage.limit(scope, models="\nlarge\nsmall\n")
    admission = await stage.admit()
    assert admission.caller.allowed_models == {"large", "small"}


async def test_scopes_that_agree_on_no_model_allow_none(stage):
    await stage.limit("key", models="\nsmall\n")
    await stage.limit("tenant", models="\nlarge\n")
    caller = await stage.control.authenticate(stage.call().digest)
    assert caller.allowed_models
    assert not caller.allowed_models & {"small", "large"}
    await stage.limit("key", models="")
    assert (await stage.control.authenticate(stage.call().digest)).allowed_models == {"large"}


async def test_authentication_counts_nothing_and_knows_the_engines_values(stage):
    await stage.limit("key", requests_per_minute=1)
    before = await stage.dump()
    callers = await asyncio.gather(*(stage.control.authenticate(stage.call().digest) for _ in range(5)))
    assert await stage.dump() == before
    caller = callers[0]
    assert (caller.key_id, caller.tenant_id) == (stage.owner("key"), stage.owner("tenant"))
    assert (caller.share, caller.weight, caller.tier) == (caller.tenant_id, 1.0, 1)
    rival = await stage.control.authenticate(stage.call(name="rival").digest)
    assert rival.cache_domain != caller.cache_domain
    assert (await stage.control.authenticate(stage.call(name="mate").digest)).cache_domain == caller.cache_domain


@pytest.mark.django_db(transaction=True)
async def test_members_of_a_trust_group_share_a_domain_and_lose_it_together(redis, transactional_db):
    def create():
        group = services.create_trust_group("Friends", actor=OLGA)
        tenants = [services.create_tenant(name, actor=OLGA, cache_policy="shared", trust_group_id=group.pk) for name in ("A", "B")]
        secrets = [services.create_key(Project.objects.get(tenant=tenant).pk, actor=OLGA).secret for tenant in tenants]
        return tenants, secrets

    tenants, secrets = await sync_to_async(create)()
    await Projection(redis).ensure_ready()
    control = AdmissionControl(redis, secret=b"secret")

    async def domains() -> list[bytes]:
        return [(await control.authenticate(digest_of(secret))).cache_domain for secret in secrets]

    before = await domains()
    assert before[0] == before[1]
    await sync_to_async(services.purge_cache)(tenants[0].pk, actor=OLGA)
    after = await domains()
    assert after[0] == after[1] != before[0]
    await sync_to_async(services.set_cache_policy)(tenants[1].pk, "tenant", actor=OLGA)
    left = await domains()
    assert left[0] != left[1]
    await sync_to_async(connections.close_all)()
