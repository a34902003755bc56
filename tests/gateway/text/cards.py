"""Models to test with: small ones made here, and the default model's real tokenizer."""

import functools
import json

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from inference.protocol.frames import ModelCard

CONTROL = ("<|end|>", "<|start|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|start|>{{ message['role'] }}\n{{ message['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


def card(tokenizer_json: str, *, name: str = "tiny", chat_template: str | None = CHAT_TEMPLATE, context_length: int = 256) -> ModelCard:
    """A model card around a tokenizer."""
    return ModelCard(
        name=name,
        architecture="llama",
        parameters=1000,
        precision="fp32",
        vocab_size=tokenizers.Tokenizer.from_str(tokenizer_json).get_vocab_size(),
        context_length=context_length,
        max_prompt_tokens=context_length - 1,
        bos_token="<|start|>",
        eos_token="<|end|>",
        eos_token_ids=(256,),
        chat_template=chat_template,
        tokenizer_json=tokenizer_json,
        fingerprint="fp_tiny",
        created=1_700_000_000,
    )


@functools.cache
def byte_tokenizer_json() -> str:
    """Byte-level: token i is byte i; 256 is <|end|>, 257 is <|start|>; 258 and on are merged words with borders in odd places."""
    unicode_of = {byte: letter for letter, byte in _byte_alphabet().items()}
    vocabulary = {unicode_of[byte]: byte for byte in range(256)}
    merges: list[tuple[str, str]] = []
    for word in ("th", "he", " t", "st", "op", "sto", "stop", "é", "ド", "END"):
        letters = [unicode_of[byte] for byte in word.encode()]
        merged = letters[0]
        for letter in letters[1:]:
            if (merged, letter) not in merges:
                merges.append((merged, letter))
            merged += letter
            vocabulary.setdefault(merged, len(vocabulary) + len(CONTROL))
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocabulary | {"<|end|>": 256, "<|start|>": 257}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in CONTROL])
    return tokenizer.to_str()


def _byte_alphabet() -> dict[str, int]:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet(), key=ord)
    kept = {letter: ord(letter) for letter in letters if ord(letter) < 256}
    moved = [byte for byte in range(256) if byte not in kept.values()]
    return kept | dict(zip((letter for letter in letters if ord(letter) >= 256), moved, strict=True))


@functools.cache
def sentencepiece_tokenizer_json() -> str:
    """SentencePiece style: spaces as ▁, bytes as <0x..>, control tokens <s> and </s>."""
    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2} | {f"<0x{byte:02X}>": 3 + byte for byte in range(256)}
    for piece in ("▁", "a", "b", "c", "▁a", "▁ab", "ab", "é", "\N{REPLACEMENT CHARACTER}"):
        vocabulary[piece] = len(vocabulary)
    description = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": place, "content": token, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
            for place, token in enumerate(("<unk>", "<s>", "</s>"))
        ],
        "normalizer": {
            "type": "Sequence",
            "normalizers": [{"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}],
        },
        "pre_tokenizer": None,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
        },
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ],
        },
        "model": {
            "type": "BPE",
            "unk_token": "<unk>",
            "fuse_unk": True,
            "byte_fallback": True,
            "vocab": vocabulary,
            "merges": ["▁ a", "▁a b", "a b"],
        },
    }
    return json.dumps(description)


@functools.cache
def default_model_card() -> ModelCard:
    """The default model as its worker presents it."""
    from inference.weights import default_model_path, open_checkpoint

    checkpoint = open_checkpoint(default_model_path())
    return ModelCard(
        name=checkpoint.name,
        architecture=checkpoint.architecture,
        parameters=0,
        precision="fp32",
        vocab_size=checkpoint.config.vocab_size,
        context_length=checkpoint.config.context_length,
        max_prompt_tokens=checkpoint.config.context_length - 1,
        bos_token=checkpoint.bos_token,
        eos_token=checkpoint.eos_token,
        eos_token_ids=checkpoint.eos_token_ids,
        chat_template=checkpoint.chat_template,
        tokenizer_json=checkpoint.tokenizer_json,
        fingerprint="",
        created=0,
    )
