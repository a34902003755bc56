"""What admission is to do, in plain Python: the scripts are compared with it, step by step."""

from dataclasses import dataclass, field

from gateway.admission.control import LEASE_MS, SILENT_MS, TRANCHE_TOKENS
from tests.gateway.admission.stage import DAY_S, MONTH_S, START
from tests.gateway.admission.stage import LEASE_MS as RENEWED_MS

MINUTE_MS = 60_000
KINDS = {"day": DAY_S, "month": MONTH_S}
Limits = dict[str, int | None]


@dataclass
class Bucket:
    """A leaky bucket of a minute's limit, in 1/60000 of what it counts."""

    limit: int
    level: int = 0
    at: int = 0

    def now(self, now: int) -> int:
        return max(self.level - (now - self.at) * self.limit, 0)

    def left(self, now: int) -> int:
        return (self.limit * MINUTE_MS - self.now(now)) // MINUTE_MS

    def wait(self, now: int, amount: int) -> int:
        return -(-(self.now(now) - (self.limit - amount) * MINUTE_MS) // self.limit)

    def charge(self, now: int, amount: int) -> "tuple[int, int]":
        self.level, self.at = self.now(now) + amount * MINUTE_MS, now
        return self.level, now

    def refund(self, now: int, receipt: "tuple[int, int]", amount: int) -> None:
        level, at = receipt
        self.level = max(self.level - min(amount * MINUTE_MS, max(level - (now - at) * self.limit, 0)), 0)


@dataclass
class Scope:
    name: str
    limits: Limits
    captured: dict[tuple[str, int], int] = field(default_factory=dict)
    held: dict[tuple[str, int], int] = field(default_factory=dict)
    buckets: dict[str, Bucket] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for rate in ("requests", "tokens"):
            if (limit := self.limits.get(f"{rate}_per_minute")) is not None:
                self.buckets[rate] = Bucket(limit)

    def add(self, periods: list[tuple[str, int]], *, held: int = 0, captured: int = 0) -> None:
        for period in periods:
            self.held[period] = self.held.get(period, 0) + held
            self.captured[period] = self.captured.get(period, 0) + captured


@dataclass
class Hold:
    scopes: list[Scope]
    periods: list[tuple[str, int]]
    prompt: int
    most: int
    allowance: int
    lease_ends: int
    state: str = "held"
    captured: int = 0
    rated: int = 0
    receipts: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)
    orphan_until: int | None = None
    leased: bool = True

    @property
    def held(self) -> int:
        return 0 if self.state == "settled" else self.prompt + self.allowance

    @property
    def in_flight(self) -> bool:
        return self.leased and self.state != "settled"


Refusal = tuple[str, str, str, int | None]
"""Code, scope, limit, ms to wait."""


class Model:
    def __init__(self) -> None:
        self.holds: dict[str, Hold] = {}

    def in_flight(self, scope: Scope) -> int:
        return sum(hold.in_flight and scope in hold.scopes for hold in self.holds.values())

    def admit(self, request: str, scopes: list[Scope], now: int, *, prompt: int, most: int) -> int | Refusal:
        starts = {kind: START + (now // 1000 - START) // length * length for kind, length in KINDS.items()}
        periods = list(starts.items())
        need, output = prompt + min(1, most), min(TRANCHE_TOKENS, most)
        refusals: list[Refusal] = []
        for scope in scopes:
            for rate, wanted in (("requests", 1), ("tokens", need)):
                bucket = scope.buckets.get(rate)
                if bucket is None:
                    continue
                limit = f"{rate}_per_minute"
                if wanted > bucket.limit:
                    refusals.append(("request_too_large", scope.name, limit, None))
                elif wanted > bucket.left(now):
                    refusals.append(("rate_limit_exceeded", scope.name, limit, bucket.wait(now, wanted)))
                elif rate == "tokens":
                    output = min(output, bucket.left(now) - prompt)
            in_flight = scope.limits.get("in_flight")
            if in_flight is not None and self.in_flight(scope) >= in_flight:
                refusals.append(("concurrency_limit_exceeded", scope.name, "in_flight", 1000))
            for period in periods:
                kind, start = period
                limit = f"tokens_per_{kind}"
                budget = scope.limits.get(limit)
                if budget is None:
                    continue
                spent, held = scope.captured.get(period, 0), scope.held.get(period, 0)
                if need > budget:
                    refusals.append(("request_too_large", scope.name, limit, None))
                elif need > budget - spent:
                    refusals.append(("insufficient_quota", scope.name, limit, (start + KINDS[kind]) * 1000 - now))
                elif need > budget - spent - held:
                    refusals.append(("concurrency_limit_exceeded", scope.name, limit, 1000))
                output = min(output, budget - spent - held - prompt)
        if refusals:
            never = [refusal for refusal in refusals if refusal[3] is None]
            return never[0] if never else max(refusals, key=lambda refusal: refusal[3])
        hold = Hold(scopes, periods, prompt, most, output, now + LEASE_MS, rated=prompt + output)
        for scope in scopes:
            scope.add(periods, held=prompt + output)
            for rate, amount in (("requests", 1), ("tokens", prompt + output)):
                if rate in scope.buckets:
                    hold.receipts[scope.name, rate] = scope.buckets[rate].charge(now, amount)
        self.holds[request] = hold
        return output

    def extend(self, request: str, now: int, wanted: int) -> tuple[int, str | None]:
        hold = self.holds[request]
        missing = min(wanted, hold.most) - hold.allowance
        if missing <= 0:
            return hold.allowance, None
        budgets, rates = [missing], [missing]
        for scope in hold.scopes:
            for period in hold.periods:
                budget = scope.limits.get(f"tokens_per_{period[0]}")
                if budget is not None:
                    budgets.append(budget - scope.captured.get(period, 0) - scope.held.get(period, 0))
            if "tokens" in scope.buckets:
                rates.append(scope.buckets["tokens"].left(now))
        more = max(min(*budgets, *rates), 0)
        if more:
            hold.allowance += more
            hold.rated += more
            for scope in hold.scopes:
                scope.add(hold.periods, held=more)
                if "tokens" in scope.buckets:
                    hold.receipts[scope.name, "tokens"] = scope.buckets["tokens"].charge(now, more)
        why = None if more == missing else "budget" if min(budgets) <= min(rates) else "rate"
        return hold.allowance, why

    def claim(self, request: str, now: int) -> None:
        hold = self.holds[request]
        hold.state, hold.lease_ends = "claimed", now + RENEWED_MS

    def renew(self, request: str, now: int) -> None:
        self.holds[request].lease_ends = now + RENEWED_MS

    def _rate_only(self, hold: Hold, now: int, tokens: int) -> None:
        if tokens < hold.rated:
            for scope in hold.scopes:
                if "tokens" in scope.buckets:
                    scope.buckets["tokens"].refund(now, hold.receipts[scope.name, "tokens"], hold.rated - tokens)
            hold.rated = tokens

    def settle(self, request: str, now: int, total: int) -> bool:
        hold = self.holds.get(request)
        if hold is None or (hold.state == "settled" and total <= hold.captured):
            return False
        total = max(total, hold.captured)
        for scope in hold.scopes:
            scope.add(hold.periods, held=-hold.held, captured=total - hold.captured)
        self._rate_only(hold, now, total)
        hold.state, hold.captured, hold.orphan_until = "settled", total, None
        return True

    def book(self, request: str, now: int, total: int, scopes: list[Scope], periods: list[tuple[str, int]]) -> None:
        hold = self.holds.pop(request, None)
        if hold is None:
            for scope in scopes:
                scope.add(periods, captured=total)
            return
        for scope in hold.scopes:
            scope.add(hold.periods, held=-hold.held, captured=total - hold.captured)
        self._rate_only(hold, now, total)

    def release(self, request: str, now: int) -> bool:
        hold = self.holds.get(request)
        if hold is None or hold.state == "settled":
            return False
        for scope in hold.scopes:
            scope.add(hold.periods, held=-hold.held)
            if "requests" in scope.buckets:
                scope.buckets["requests"].refund(now, hold.receipts[scope.name, "requests"], 1)
        self._rate_only(hold, now, 0)
        del self.holds[request]
        return True

    def tend(self, now: int) -> None:
        for request, hold in list(self.holds.items()):
            if hold.in_flight and hold.lease_ends < now:
                if hold.state == "held":
                    self.release(request, now)
                else:
                    hold.leased, hold.orphan_until = False, now + SILENT_MS
            elif hold.orphan_until is not None and hold.orphan_until < now:
                for scope in hold.scopes:
                    scope.add(hold.periods, held=-hold.held)
                del self.holds[request]
