"""Cache domains: equal for those who may share, different for everybody else, whatever ids look like."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.admission.domains import cache_domain, typed_field
from tenants.models import CachePolicy

POLICIES = [policy.value for policy in CachePolicy if policy is not CachePolicy.OFF]
OWNER_OF = {"isolated": "key", "project": "project", "tenant": "tenant", "shared": "group"}
ids = st.text(min_size=1, max_size=8)


def domain(secret: bytes = b"secret", *, policy: str, epoch: int = 0, **owners: str) -> bytes | None:
    named = {"key": "k", "project": "p", "tenant": "t", "group": "g"} | owners
    return cache_domain(secret, policy=policy, epoch=epoch, **named)


@given(policy=st.sampled_from(POLICIES), epoch=st.integers(0, 2**31), owner=ids, others=st.lists(ids, min_size=3, max_size=3))
def test_only_the_policys_owner_its_epoch_and_the_secret_matter(policy, epoch, owner, others):
    field = OWNER_OF[policy]
    strangers = dict(zip((name for name in OWNER_OF.values() if name != field), others, strict=True))
    found = domain(policy=policy, epoch=epoch, **{field: owner})
    assert found == domain(policy=policy, epoch=epoch, **{field: owner}, **strangers)
    assert found != domain(policy=policy, epoch=epoch + 1, **{field: owner})
    assert found != domain(policy=policy, epoch=epoch, **{field: owner + "x"})
    assert found != domain(b"another", policy=policy, epoch=epoch, **{field: owner})
    assert found is not None
    assert len(found) == 32


def test_policies_never_meet_even_where_all_ids_are_the_same():
    domains = {domain(policy=policy, key="x", project="x", tenant="x", group="x") for policy in POLICIES}
    assert len(domains) == len(POLICIES)


@pytest.mark.parametrize("one", ["isolated", "project", "tenant", "shared"])
def test_field_boundaries_cannot_be_forged(one):
    """E23, E25: no id can be written so that it reads as another field, epoch or policy."""
    crafted = ["1", "11", "key", typed_field("key", "1").decode("latin-1"), "epoch\0\0\0\x011", "1\0", "\0" + "1"]
    seen = {}
    for text, epoch in itertools.product(crafted, (0, 1, 11)):
        found = domain(policy=one, epoch=epoch, **{OWNER_OF[one]: text})
        assert seen.setdefault(found, (text, epoch)) == (text, epoch)


@given(fields=st.lists(st.tuples(ids, ids), min_size=2, max_size=4), others=st.lists(st.tuples(ids, ids), min_size=2, max_size=4))
def test_different_fields_are_different_bytes(fields, others):
    def joined(pairs: list[tuple[str, str]]) -> bytes:
        return b"".join(typed_field(kind, value) for kind, value in pairs)

    assert (joined(fields) == joined(others)) == (fields == others)


def test_off_has_no_domain():
    assert domain(policy="off") is None


@pytest.mark.parametrize(("policy", "owners"), [("shared", {"group": ""}), ("unknown", {}), ("", {})])
def test_a_policy_without_owner_is_no_domain_by_accident(policy, owners):
    with pytest.raises(ValueError, match="owner"):
        domain(policy=policy, **owners)
