"""What the tokenizer's own JSON says about its vocabulary: added tokens, and the bytes that each token stands for."""

import re
from collections.abc import Callable
from functools import reduce
from typing import Any

import msgspec
from msgspec import Struct

from gateway.text.errors import TokenizerUnsupported

WORD_BOUNDARY_MARK = "▁"
"""SentencePiece writes a space so."""

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class AddedToken(Struct, frozen=True):
    """One entry of `added_tokens`: matched in the text before anything else is."""

    id: int
    content: str
    special: bool = False
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False
    normalized: bool = False


class TokenizerFile(Struct, frozen=True):
    """The parts of tokenizer.json that the gateway reads itself."""

    added_tokens: list[AddedToken] = msgspec.field(default_factory=list)
    decoder: dict[str, Any] | None = None
    normalizer: dict[str, Any] | None = None


_decoder = msgspec.json.Decoder(TokenizerFile)


def read_tokenizer_file(tokenizer_json: str) -> TokenizerFile:
    """Parse tokenizer.json; raises TokenizerUnsupported if it isn't one."""
    try:
        return _decoder.decode(tokenizer_json)
    except msgspec.DecodeError as error:
        raise TokenizerUnsupported(f"not a tokenizer.json: {error}") from error


TokenBytes = Callable[[str], bytes]
"""The bytes that a token, given as it is written in the vocabulary, adds to the text."""


def token_bytes_of(decoder: dict[str, Any] | None) -> TokenBytes:
    """How the decoder of tokenizer.json turns one token into bytes.

    Only decoders that treat each token by itself are served (byte-level and SentencePiece): with them, text is the UTF-8 reading of the
    concatenated bytes, so that a stream and the whole can't differ. SentencePiece's removal of the very first space is not part of it:
    generated text continues a prompt. Raises TokenizerUnsupported for any other decoder.
    """
    match decoder:
        case None:
            return str.encode
        case {"type": "ByteLevel"}:
            return _byte_level
        case {"type": "Metaspace"}:
            return _replacing(str(decoder.get("replacement", WORD_BOUNDARY_MARK)), " ")
        case {"type": "Sequence", "decoders": list(steps)}:
            return _sequence(steps)
        case _:
            raise TokenizerUnsupported(f"decoder {decoder.get('type')!r} isn't supported")


def _byte_alphabet() -> dict[str, int]:
    """Byte-level BPE's alphabet: printable Latin-1 stands for itself, the other bytes for U+0100 and up, in order."""
    itself = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(itself)]
    return {chr(byte): byte for byte in itself} | {chr(0x100 + place): byte for place, byte in enumerate(others)}


_BYTE_OF = _byte_alphabet()


def _byte_level(token: str) -> bytes:
    try:
        return bytes([_BYTE_OF[character] for character in token])
    except KeyError:
        return token.encode()  # an added token, written as plain text


def _replacing(old: str, new: str) -> TokenBytes:
    return lambda token: token.replace(old, new).encode()


def _byte_fallback(token: str) -> bytes | None:
    found = _BYTE_TOKEN.fullmatch(token)
    return bytes.fromhex(found[1]) if found else None


def _sequence(steps: list[dict[str, Any]]) -> TokenBytes:
    replacements: list[tuple[str, str]] = []
    byte_fallback = byte_level = False
    for step in steps:
        match step:
            case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)}:
                replacements.append((old, new))
            case {"type": "Metaspace"}:
                replacements.append((str(step.get("replacement", WORD_BOUNDARY_MARK)), " "))
            case {"type": "ByteFallback"}:
                byte_fallback = True
            case {"type": "ByteLevel"}:
                byte_level = True
            case {"type": "Fuse"} | {"type": "Strip"}:
                pass  # joining is what concatenation does; stripping concerns the start of a whole text
            case _:
                raise TokenizerUnsupported(f"decoder step {step.get('type')!r} isn't supported")

    def token_bytes(token: str) -> bytes:
        if byte_fallback and (raw := _byte_fallback(token)) is not None:
            return raw
        text = reduce(lambda so_far, pair: so_far.replace(*pair), replacements, token)
        return _byte_level(text) if byte_level else text.encode()

    return token_bytes
