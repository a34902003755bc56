import hashlib
import hmac

from hypothesis import given
from hypothesis import strategies as st

from inference.protocol.block_keys import KEY_BYTES, block_key, prompt_keys, root_key, token_bytes

SECRET = b"s" * 32
tokens = st.lists(st.integers(0, 2**32 - 1), max_size=40)


def root(domain: bytes = b"acme", *, secret: bytes = SECRET, fingerprint: str = "model", policy: bytes = b"") -> bytes:
    return root_key(secret, fingerprint=fingerprint, domain=domain, policy=policy)


def test_a_key_is_a_keyed_sha256_of_typed_length_prefixed_fields() -> None:
    parent, held = b"p" * KEY_BYTES, token_bytes([1, 2])
    message = b"\x02" + (32).to_bytes(8, "big") + parent + b"\x03" + (8).to_bytes(8, "big") + held
    assert block_key(SECRET, parent, held) == hmac.new(SECRET, message, hashlib.sha256).digest()


def test_tokens_are_little_endian_words() -> None:
    assert token_bytes([1, 258]) == bytes([1, 0, 0, 0, 2, 1, 0, 0])


def test_root_depends_on_secret_model_domain_and_policy() -> None:
    roots = {root(), root(b"other"), root(secret=b"t" * 32), root(fingerprint="other"), root(policy=b"epoch 2")}
    assert len(roots) == 5


def test_moving_a_byte_between_neighbouring_fields_changes_the_root() -> None:
    assert root(b"bc", fingerprint="a") != root(b"c", fingerprint="ab")
    assert root(b"ab", policy=b"c") != root(b"a", policy=b"bc")


def test_an_extra_is_not_mistaken_for_tokens_nor_for_another_extra() -> None:
    parent = root()
    plain = token_bytes([1, 2])
    keys = {
        block_key(SECRET, parent, plain),
        block_key(SECRET, parent, plain, [("image", b"x")]),
        block_key(SECRET, parent, plain, [("adapter", b"x")]),
        block_key(SECRET, parent, plain, [("imag", b"ex")]),
        block_key(SECRET, parent, plain, [("image", b""), ("x", b"")]),
        block_key(SECRET, parent, plain + b"image", [("x", b"")]),
    }
    assert len(keys) == 6


@given(first=tokens, second=tokens, size=st.integers(1, 8))
def test_keys_agree_exactly_as_far_as_the_full_blocks_do(first: list[int], second: list[int], size: int) -> None:
    common = 0
    while (end := (common + 1) * size) <= min(len(first), len(second)) and first[:end] == second[:end]:
        common += 1
    left, right = prompt_keys(SECRET, root(), first, size), prompt_keys(SECRET, root(), second, size)
    assert len(left) == len(first) // size
    assert left[:common] == right[:common]
    assert not set(left[common:]) & set(right[common:])


@given(prompt=tokens, size=st.integers(1, 8))
def test_domains_share_no_key(prompt: list[int], size: int) -> None:
    assert not set(prompt_keys(SECRET, root(b"acme"), prompt, size)) & set(prompt_keys(SECRET, root(b"rival"), prompt, size))
