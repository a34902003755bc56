"""Errors of text and tokens.

TextError
├── TokenizerUnsupported   the model's tokenizer.json can't be served; the operator's problem, no use in trying again
└── PromptRefused          the caller's prompt can't be turned into tokens; 400, the message is for the caller
    ├── ChatUnsupported    the model has no chat template
    └── TemplateRefused    the model's chat template raised, or went past its limits, on these messages
"""


class TextError(Exception):
    """Base of all errors of `gateway.text`."""


class TokenizerUnsupported(TextError):
    """The tokenizer needs something that isn't implemented; the message names it."""


class PromptRefused(TextError):
    """The prompt can't be turned into tokens."""


class ChatUnsupported(PromptRefused):
    """The model has no chat template."""


class TemplateRefused(PromptRefused):
    """The chat template can't render these messages."""
