"""A body in JSON to a checked struct. Whatever can't be honoured is refused by name: nothing accepted is ignored."""

import re
from typing import TypeVar

import msgspec

from gateway.api.errors import ApiError

Body = TypeVar("Body")

_AT = re.compile(r" - at (?:`key` in )?`\$([^`]*)`$")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`$", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(.*)`$", re.DOTALL)

REASONS = {
    "audio": "Audio isn't supported.",
    "best_of": "best_of other than n isn't supported.",
    "chat_template": "A caller's chat template is never run: the model's own is used.",
    "chat_template_kwargs": "Arguments for the chat template aren't supported.",
    "function_call": "Function calls aren't supported.",
    "functions": "Functions aren't supported.",
    "modalities": "The only modality is text.",
    "parallel_tool_calls": "Tool calls aren't supported.",
    "prediction": "Predicted outputs aren't supported.",
    "prompt_cache_retention": "The operator sets how long prompts are cached.",
    "reasoning_effort": "The model takes no reasoning effort.",
    "response_format": 'Structured output isn\'t supported; the only response format is {"type": "text"}.',
    "service_tier": "The only service tiers are auto and default.",
    "stream_options.continuous_usage_stats": "Usage is reported once, at the end of the stream.",
    "stream_options.include_obfuscation": "Streams carry no obfuscation field.",
    "suffix": "Completion with a suffix isn't supported.",
    "tool_calls": "Tool calls aren't supported.",
    "tool_choice": "Tool calls aren't supported.",
    "tools": "Tool calls aren't supported.",
    "verbosity": "The model takes no verbosity.",
    "web_search_options": "Web search isn't supported.",
}
"""Why a field, known from elsewhere, is refused. By its path, its first or its last name."""


def decode(decoder: msgspec.json.Decoder[Body], body: bytes) -> Body:
    """The decoded body, or ApiError (400) that says where it is wrong and, as `param`, in which field."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _wrong_field(str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ApiError(f"We could not parse the JSON body of your request: {_where(body, str(error))}", code="invalid_json") from error
    except RecursionError as error:
        raise ApiError("The JSON body of your request is nested too deeply.", code="invalid_json") from error


def _where(body: bytes, message: str) -> str:
    if not body.strip():
        return "it is empty."
    try:
        body.decode()
    except UnicodeDecodeError as error:
        return f"it isn't valid UTF-8 (byte {error.start})."
    if message == "Input data was truncated":
        return f"it ends too early (byte {len(body)})."
    return f"{message.removeprefix('JSON is malformed: ')}."


def _wrong_field(message: str) -> ApiError:
    at = _AT.search(message)
    path = at[1].lstrip(".").removesuffix("[...]") if at else ""
    what = message[: at.start()] if at else message
    if unknown := _UNKNOWN.match(what):
        param = _joined(path, unknown[1][:200])
        return ApiError(_reason(param) or f"Unrecognized request argument supplied: {param}", param=param, code="unknown_parameter")
    if missing := _MISSING.match(what):
        param = _joined(path, missing[1])
        return ApiError(f"Missing required parameter: '{param}'.", param=param, code="missing_required_parameter")
    if not path:
        return ApiError(f"The JSON body of your request has to be an object. {what}.", code="invalid_json")
    if reason := _reason(path):
        return ApiError(f"Unsupported value for '{path}': {reason}", param=path, code="unsupported_parameter")
    return ApiError(
        f"Invalid value for '{path}': {what}.", param=path, code="invalid_type" if what.startswith("Expected") else "invalid_value"
    )


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _reason(param: str) -> str | None:
    return REASONS.get(param) or REASONS.get(re.split(r"[.\[]", param)[0]) or REASONS.get(param.rpartition(".")[2])


def unsupported(param: str) -> ApiError:
    """A known field with a value that can't be honoured."""
    return ApiError(f"Unsupported value for '{param}': {_reason(param)}", param=param, code="unsupported_parameter")


def invalid(param: str, message: str) -> ApiError:
    """A value that is wrong in itself; the message says what is right."""
    return ApiError(f"Invalid value for '{param}': {message}", param=param, code="invalid_value")
