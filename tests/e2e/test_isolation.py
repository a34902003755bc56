"""Two tenants warm and probe the same prefix; the engine's own counters tell who was served from the cache."""

import httpx
import pytest

pytestmark = pytest.mark.e2e

PREFIX = [1, 9690, 198] + [(i * 7919) % 40000 + 100 for i in range(597)]


def cached(up, key: str, model: str, *, tail: int) -> int:
    body = {"model": model, "prompt": [*PREFIX, tail], "max_tokens": 1, "temperature": 0}
    answer = httpx.post(f"{up.demo['base_url']}/completions", json=body, headers={"Authorization": f"Bearer {key}"}, timeout=120)
    assert answer.status_code == 200, answer.text
    usage = answer.json()["usage"]
    assert usage["prompt_tokens"] == 601
    return usage["prompt_tokens_details"]["cached_tokens"]


def test_a_prefix_is_reused_within_a_tenant_and_never_by_another(up, model):
    acme, rival = up.create_key("Acme cache"), up.create_key("Rival cache")
    colleague = up.manage("create_key", "Acme cache").stdout.strip()
    assert cached(up, acme, model, tail=500) == 0
    assert cached(up, acme, model, tail=501) >= 592
    assert cached(up, colleague, model, tail=502) >= 592
    assert cached(up, rival, model, tail=501) == 0
    assert cached(up, rival, model, tail=503) >= 592


@pytest.mark.parametrize(("policy", "colleague_cached"), [("isolated", False), ("off", False)])
def test_stricter_policies_keep_colleagues_apart(up, model, policy, colleague_cached):
    tenant = f"Acme {policy}"
    up.manage("create_tenant", tenant, "--cache-policy", policy)
    first, second = (up.manage("create_key", tenant).stdout.strip() for _ in range(2))
    assert cached(up, first, model, tail=500) == 0
    assert (cached(up, first, model, tail=501) > 0) == (policy == "isolated")
    assert (cached(up, second, model, tail=501) > 0) == colleague_cached
