"""Text in, tokens out, and back: chat templates, tokenising, incremental detokenising, stop strings.

| you have | you call |
| --- | --- |
| a worker's ModelCard | `Tokenizer(card)`, once per model; it is immutable and may be shared |
| a string prompt | `await tokenizer.encode(text)` |
| chat messages | `await tokenizer.encode_chat(messages)` |
| tokens of one choice, as they come | `TextStream(tokenizer, …)`: `push` each token, `take` what is certain, `finish` at its end |
"""

from gateway.text.errors import ChatUnsupported, PromptRefused, PromptTooLong, TemplateRefused, TextError, TokenizerUnsupported
from gateway.text.stream import Cut, TextStream, token_logprob
from gateway.text.templates import ChatMessage
from gateway.text.tokenizer import Tokenizer

__all__ = [
    "ChatMessage",
    "ChatUnsupported",
    "Cut",
    "PromptRefused",
    "PromptTooLong",
    "TemplateRefused",
    "TextError",
    "TextStream",
    "Tokenizer",
    "TokenizerUnsupported",
    "token_logprob",
]
