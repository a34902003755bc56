"""Errors of text and tokens.

TextError
├── TokenizerUnsupported   the model's tokenizer.json can't be served; the operator's problem, no use in trying again
└── PromptRefused          the caller's prompt can't be turned into tokens; 400, the message is for the caller
    ├── PromptTooLong      the text is longer than any that fits the model's context, so it isn't even tokenised
    ├── ChatUnsupported    the model has no chat template
    └── TemplateRefused    the model's chat template raised, or went past its limits, on these messages
"""


class TextError(Exception):
    """Base of all errors of `gateway.text`."""


class TokenizerUnsupported(TextError):
    """The tokenizer needs something that isn't implemented; the message names it."""


class PromptRefused(TextError):
    """The prompt can't be turned into tokens."""

    code = "invalid_value"
    """What the caller's error object says."""


class PromptTooLong(PromptRefused):
    """Even the vocabulary's longest tokens couldn't bring the text into the context."""

    code = "context_length_exceeded"


class ChatUnsupported(PromptRefused):
    """The model has no chat template."""


class TemplateRefused(PromptRefused):
    """The chat template can't render these messages."""
