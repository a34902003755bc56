"""Random play over admission, compared with a model of it after every step; in the end everything is back to zero."""

import asyncio
import os
from datetime import UTC, datetime

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule, run_state_machine_as_test
from redis.asyncio import Redis

from gateway.admission.booking import Booked, book
from gateway.admission.outcomes import Refused
from gateway.jobs.flusher import GROUP
from inference.protocol.registry import USAGE_STREAM
from tenants.ledger.models import QUANTITIES
from tenants.ledger.settlement import Event
from tests.gateway.admission.model import Model, Scope
from tests.gateway.admission.stage import Stage

LIMITS = st.fixed_dictionaries(
    {},
    optional={
        "requests_per_minute": st.integers(1, 12),
        "tokens_per_minute": st.integers(20, 3000),
        "in_flight": st.integers(1, 6),
        "tokens_per_day": st.integers(20, 3000),
        "tokens_per_month": st.integers(20, 5000),
    },
)
EXAMPLES = int(os.environ.get("PROOF_EXAMPLES", "10"))
CALLS = st.tuples(
    st.sampled_from(["acme", "acme", "acme", "mate", "rival"]),
    st.one_of(st.integers(1, 30), st.integers(1, 400)),
    st.one_of(st.integers(0, 40), st.integers(0, 700)),
)
OWNERS = {"acme": "acme", "mate": "acme", "rival": "rival"}


class AdmissionPlay(RuleBasedStateMachine):
    """Holds are only ever in flight, settled or gone; so are those of the model."""

    requests = Bundle("requests")

    def __init__(self, redis_url: str) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.redis = self.runner.run(self._connect(redis_url))
        self.stage = Stage(self.redis)
        self.runner.run(self.stage.open())
        self.model = Model()
        self.scopes: dict[tuple[str, str], Scope] = {}
        self.accounts: dict[str, tuple[list[Scope], list[tuple[str, int]], str]] = {}
        self.totals: dict[str, tuple[int, int]] = {}
        self.booked = 0

    async def _connect(self, redis_url: str) -> Redis:
        redis = Redis.from_url(redis_url)
        await redis.flushall()
        await redis.xgroup_create(USAGE_STREAM, GROUP, id="0", mkstream=True)
        return redis

    @property
    def now(self) -> int:
        return self.stage.now_ms

    @initialize(
        key=LIMITS,
        mate=LIMITS,
        project=LIMITS,
        tenant=LIMITS,
    )
    def limit(self, key, mate, project, tenant):
        named = {("key", "acme"): key, ("key", "mate"): mate, ("project", "acme"): project, ("tenant", "acme"): tenant}
        for scope, name in [*named, ("key", "rival"), ("project", "rival"), ("tenant", "rival")]:
            limits = named.get((scope, name), {})
            self.scopes[scope, name] = Scope(scope, limits)
            if limits:
                self.runner.run(self.stage.limit(scope, name, **limits))

    def scopes_of(self, name: str) -> list[Scope]:
        return [self.scopes["key", name], self.scopes["project", OWNERS[name]], self.scopes["tenant", OWNERS[name]]]

    @rule(target=requests, calls=st.lists(CALLS, min_size=1, max_size=4))
    def admit(self, calls):
        admitted = [self._admit(name, prompt, most) for name, prompt, most in calls]
        return multiple(*(request for request in admitted if request is not None))

    def _admit(self, name: str, prompt: int, most: int) -> str | None:
        call = self.stage.call(name=name, prompt=prompt, most=most)
        expected = self.model.admit(call.request_id, self.scopes_of(name), self.now, prompt=prompt, most=most)
        before = self.runner.run(self.stage_dump()) if isinstance(expected, tuple) else None
        outcome = self.runner.run(self.stage.control.admit(call))
        if isinstance(outcome, Refused):
            wait_ms = None if outcome.retry_after_s is None else round(outcome.retry_after_s * 1000)
            assert (outcome.code, outcome.scope, outcome.limit, wait_ms) == expected
            assert self.runner.run(self.stage_dump()) == before
            return None
        assert outcome.allowance == expected
        hold = self.model.holds[call.request_id]
        self.accounts[call.request_id] = (hold.scopes, hold.periods, name)
        return call.request_id

    @rule(request=requests, more=st.integers(0, 600))
    def extend(self, request, more):
        hold = self.model.holds.get(request)
        wanted = more if hold is None else hold.allowance + more
        extension = self.runner.run(self.stage.control.extend(request, wanted))
        if hold is None or hold.state == "settled":
            assert (extension.allowance, extension.ended_by) == (0, "lost")
        else:
            assert (extension.allowance, extension.ended_by) == self.model.extend(request, self.now, wanted)

    @rule(request=requests)
    def claim(self, request):
        hold = self.model.holds.get(request)
        possible = hold is not None and hold.state == "held"
        assert self.runner.run(self.stage.claim(request)) == possible
        if possible:
            self.model.claim(request, self.now)

    @rule(request=requests)
    def renew(self, request):
        hold = self.model.holds.get(request)
        if hold is not None and hold.in_flight:
            self.runner.run(self.stage.renew(request))
            self.model.renew(request, self.now)

    def total(self, request: str, part: float) -> tuple[int, int]:
        """Prompt and billed tokens that its allowance permits; final, as a worker's are."""
        hold = self.model.holds.get(request)
        if hold is not None:
            return self.totals.setdefault(request, (hold.prompt, int(hold.allowance * part)))
        # Its hold is gone: what it used can't be kept within a limit any more, only be counted.
        return (1, 2) if self.accounts[request][2] == "rival" else (0, 0)

    @rule(request=requests, part=st.floats(0, 1))
    def settle(self, request, part):
        prompt, billed = self.total(request, part)
        changed = self.runner.run(self.stage.settle(request, prompt=prompt, billed=billed))
        assert changed == self.model.settle(request, self.now, prompt + billed)

    @rule(request=requests)
    def release(self, request):
        assert self.runner.run(self.stage.control.release(request)) == self.model.release(request, self.now)

    @rule(request=consumes(requests), part=st.floats(0, 1), times=st.integers(1, 2))
    def book(self, request, part, times):
        """Its event is in the ledger, and its entry is acknowledged, once or again."""
        prompt, billed = self.total(request, part)
        scopes, periods, name = self.accounts[request]
        self.booked += 1
        entry = self.runner.run(self._pending_entry())
        booked = Booked(entry=entry, event=self._event(request, name, dict(periods), prompt, billed), row=self.booked, is_source=True)
        for _ in range(times):
            self.runner.run(book(self.redis, [booked], stream=USAGE_STREAM, group=GROUP))
        self.model.book(request, self.now, prompt + billed, scopes, periods)

    async def _pending_entry(self) -> str:
        await self.redis.xadd(USAGE_STREAM, {"event": b""})
        answer = await self.redis.xreadgroup(GROUP, "play", {USAGE_STREAM: ">"}, count=1)
        return answer[0][1][0][0].decode()

    def _event(self, request: str, name: str, starts: dict[str, int], prompt: int, billed: int) -> Event:
        counted = {"prompt_tokens": prompt, "billed_tokens": billed}
        return Event(
            occurred_at=datetime.now(UTC),
            worker="w",
            epoch="e",
            sequence=self.booked,
            request_id=request,
            tenant_id=self.stage.owner("tenant", OWNERS[name]),
            project_id=self.stage.owner("project", OWNERS[name]),
            key_id=self.stage.owner("key", name),
            model="small",
            endpoint="chat",
            reason="stop",
            budget_day=starts["day"],
            budget_month=starts["month"],
            quantities=tuple(counted.get(quantity, 0) for quantity in QUANTITIES),
        )

    @rule(seconds=st.sampled_from([0.001, 0.5, 3, 10, 20, 61, 1000, 1000, 30_000]))
    def wait(self, seconds):
        self.runner.run(self.stage.wait(seconds))
        self.runner.run(self.stage.control.tend())
        self.model.tend(self.now)

    async def stage_dump(self) -> dict[str, object]:
        await self.redis.delete("lockgate:committed:e")
        names = [name for name in await self.redis.keys("lockgate:*") if name.decode() != USAGE_STREAM]
        return {
            name.decode(): await self.redis.hgetall(name)
            if await self.redis.type(name) == b"hash"
            else await self.redis.get(name)
            if await self.redis.type(name) == b"string"
            else await self.redis.zrange(name, 0, -1, withscores=True)
            for name in names
        }

    @invariant()
    def counters_are_the_models_and_within_their_limits(self):
        for (kind_of_scope, name), scope in self.scopes.items():
            counters = self.runner.run(self.redis.hgetall(self.stage.counters(kind_of_scope, name)))
            for what, expected in (("captured", scope.captured), ("held", scope.held)):
                for (kind, start), tokens in expected.items():
                    # What lies before the running month may have been swept.
                    found = counters.get(f"{what}:{kind}:{start}".encode())
                    assert tokens == int(found or 0) or (found is None and kind == "day" and what == "captured"), (name, what, kind)
            for (kind, start), spent in scope.captured.items():
                budget = scope.limits.get(f"tokens_per_{kind}")
                assert budget is None or spent + scope.held[kind, start] <= budget
            in_flight = self.runner.run(self.stage.in_flight(kind_of_scope, name))
            assert in_flight == self.model.in_flight(scope) <= scope.limits.get("in_flight", 10**9)

    def teardown(self):
        self.runner.run(self._end())
        self.runner.close()

    async def _end(self) -> None:
        for request in list(self.model.holds):
            await self.stage.control.release(request)
            self.model.release(request, self.now)
        for scope, name in self.scopes:
            counters = await self.redis.hgetall(self.stage.counters(scope, name))
            assert not any(int(value) for field, value in counters.items() if field.startswith(b"held:"))
            assert await self.stage.in_flight(scope, name) == 0
        assert not await self.redis.exists("lockgate:holds")
        await self.redis.aclose()


def test_admission_does_what_the_model_does(clock, redis_url):
    run_state_machine_as_test(
        lambda: AdmissionPlay(redis_url),
        settings=settings(max_examples=EXAMPLES, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)),
    )
