"""Text and chats to tokens, tokens to bytes. One Tokenizer per model, shared by all requests."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import tokenizers

from gateway.text.bounds import OutOfFuel
from gateway.text.control import ControlTokens
from gateway.text.detokenizer import Detokenizer
from gateway.text.errors import ChatUnsupported, PromptRefused, PromptTooLong, TemplateRefused, TokenizerUnsupported
from gateway.text.templates import SMALL_BUDGET, Budget, ChatTemplate
from gateway.text.vocabulary import read_tokenizer_file, token_bytes_of
from inference.protocol.frames import ModelCard

INLINE_CHARACTERS = 1_000
"""Up to here a text is tokenised where it is: about 0.6 ms at most. A longer one goes to a thread; the library holds no GIL there."""

NORMALIZED_BYTES = 4
"""A normalizer makes at most so many bytes into one: composing Hangul makes three."""

_THREADS = 4
_threads = ThreadPoolExecutor(max_workers=_THREADS, thread_name_prefix="text")


class Tokenizer:
    """A model's tokenizer and chat template, made from its ModelCard.

    Raises TokenizerUnsupported when the card's tokenizer or template can't be served.
    """

    def __init__(self, card: ModelCard) -> None:
        self.card = card
        self.vocab_size = card.vocab_size
        file = read_tokenizer_file(card.tokenizer_json)
        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(card.tokenizer_json)
        except Exception as error:  # the library raises bare Exception for whatever is wrong with the file
            raise TokenizerUnsupported(f"not a tokenizer.json: {error}") from error
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._bytes_of = token_bytes_of(file.decoder)
        self._most_bytes = card.max_prompt_tokens * self._longest_token() * (1 if file.normalizer is None else NORMALIZED_BYTES)
        self._control = ControlTokens(self._tokenizer, file.added_tokens)
        self._bytes: dict[int, bytes] = {}
        self._texts: dict[int, str] = {}
        self._template = (
            None if card.chat_template is None else ChatTemplate(card.chat_template, bos_token=card.bos_token, eos_token=card.eos_token)
        )

    def _longest_token(self) -> int:
        """In bytes."""
        return max(len(self._bytes_of(name)) for name in self._tokenizer.get_vocab(with_added_tokens=True))

    # --- text → tokens

    async def encode(self, text: str) -> list[int]:
        """The tokens of a prompt given as text. Control tokens written in it are control tokens: the whole prompt is the caller's."""
        if len(text) <= INLINE_CHARACTERS:
            return self.encode_now(text)
        return await asyncio.get_running_loop().run_in_executor(_threads, self.encode_now, text)

    def encode_now(self, text: str) -> list[int]:
        """Like `encode`, in the calling thread."""
        self._check_length(text)
        return self._control.real_ids(self._tokenizer.encode(self._control.stand_in(text), add_special_tokens=True).ids)

    async def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """The tokens of a chat, rendered with the model's own template, the assistant's turn opened.

        Only the template makes control tokens: text that looks like one, in whatever message, is text.
        Raises ChatUnsupported without a template, TemplateRefused when it can't render these messages.
        """
        if sum(len(text) for message in messages for text in message.values()) <= INLINE_CHARACTERS:
            try:
                return self.encode_chat_now(messages, budget=SMALL_BUDGET)
            except OutOfFuel:  # more to compute than to read: not on the event loop
                pass
        try:
            return await asyncio.get_running_loop().run_in_executor(_threads, self.encode_chat_now, messages)
        except OutOfFuel as error:
            raise TemplateRefused(f"The model's chat template can't render these messages: {error}.") from error

    def encode_chat_now(self, messages: Sequence[Mapping[str, str]], *, budget: Budget | None = None) -> list[int]:
        """Like `encode_chat`, in the calling thread; raises OutOfFuel past the budget."""
        if self._template is None:
            raise ChatUnsupported(f"The model {self.card.name} has no chat template. Use /v1/completions.")
        control = self._control
        for message in messages:
            for text in message.values():
                _size_of(text)
        safe = [{key: control.defuse(text) for key, text in message.items()} for message in messages]
        rendered = self._template.render(safe, budget=budget)
        self._check_length(rendered)
        rendered = control.stand_in(rendered)
        ids = self._tokenizer.encode(control.without_marks(rendered), add_special_tokens=False).ids
        if control.forged(ids):
            raise PromptRefused("The messages contain text that this model's tokenizer can only read as a control token.")
        return control.real_ids(ids)

    def _check_length(self, text: str) -> None:
        """Tokenising takes seconds for megabytes, and is the caller's for free: what can't fit isn't tokenised."""
        if _size_of(text) > self._most_bytes:
            raise PromptTooLong(
                f"This model's maximum context length is {self.card.max_prompt_tokens + 1} tokens. A prompt of {len(text)} characters "
                "can't fit."
            )

    # --- tokens → text

    def is_control(self, token: int) -> bool:
        """Whether the token is a control token: it has no text in an answer."""
        return token in self._control.ids

    def token_bytes(self, token: int) -> bytes:
        """The token's own bytes, a control token's too; empty for an id that the tokenizer doesn't know."""
        raw = self._bytes.get(token)
        if raw is None:
            name = self._tokenizer.id_to_token(token) if token < self._control.first_stand_in else None
            raw = b"" if name is None else name.encode() if token in self._control.ids else self._bytes_of(name)
            self._bytes[token] = raw
        return raw

    def text_bytes(self, token: int) -> bytes:
        """The bytes that the token adds to the text; none for a control token."""
        return b"" if token in self._control.ids else self.token_bytes(token)

    def token_text(self, token: int) -> str:
        """The token's own text, U+FFFD where its bytes are no whole characters."""
        text = self._texts.get(token)
        if text is None:
            text = self._texts[token] = self.token_bytes(token).decode(errors="replace")
        return text

    def detokenizer(self, prompt: Sequence[int] = ()) -> Detokenizer:
        """An incremental detokenizer for what follows the prompt."""
        return Detokenizer(self, prompt)

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of tokens, control tokens left out."""
        return b"".join(map(self.text_bytes, tokens)).decode(errors="replace")


def _size_of(text: str) -> int:
    """In bytes of UTF-8. Raises PromptRefused for what has none."""
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        raise PromptRefused("The text contains half of a surrogate pair, which is no character.") from error
