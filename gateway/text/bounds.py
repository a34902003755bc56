"""How large the values of a chat template may become. Each is weighed before it is made, so that none is ever too large to hold."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from jinja2 import filters, pass_environment, pass_eval_context
from jinja2.nodes import EvalContext
from jinja2.sandbox import SandboxedEnvironment

MAX_CHARACTERS = 16 * 1024 * 1024
"""Longest string that a template may make."""
ELEMENT = 16
"""Characters that an element of a list counts for, beside its own."""
MAX_DECIMALS = 100

REMOVED_FILTERS = ("batch", "center", "format", "pprint", "slice", "urlize", "wordwrap", "xmlattr")
_REFUSED_METHODS = ("expandtabs", "maketrans", "translate")
_WIDE_PERCENT = re.compile(r"%[^a-zA-Z%]*(?:\*|\d{5})")
_WIDE_BRACES = re.compile(r"\{[^}]*(?:\{|\d{5})")


class OutOfFuel(Exception):
    """The template's budget is spent."""


def weight(value: Any) -> int:
    """About as many characters as the value has when it is written out; anything above MAX_CHARACTERS once it is past that."""
    total, left = 0, [value]
    while left and total <= MAX_CHARACTERS:
        item = left.pop()
        if isinstance(item, str):
            total += len(item)
        elif isinstance(item, Mapping):
            total += 2 * ELEMENT * len(item)
            left += [*item.keys(), *item.values()]
        elif isinstance(item, list | tuple | set | frozenset):
            total += ELEMENT * len(item)
            left += item
        else:
            total += ELEMENT
    return total


def check(size: int) -> None:
    """Raises OutOfFuel for a size that is too large."""
    if size > MAX_CHARACTERS:
        raise OutOfFuel(f"it makes a value of more than {MAX_CHARACTERS} characters")


def checked(value: Any) -> Any:
    """The value, if it may be written out."""
    if not isinstance(value, int | float | None):
        check(weight(value))
    return value


def joined(*parts: Any) -> str:
    """The parts written one after the other."""
    check(weight(parts) - ELEMENT * len(parts))
    return "".join(map(str, parts))


def check_operation(operator: str, left: Any, right: Any) -> None:
    """Before a binary operation. Raises OutOfFuel for one whose result would be too large."""
    match operator:
        case "+":
            if isinstance(left, str | list | tuple) and isinstance(right, str | list | tuple):
                check(_length(left) + _length(right))
        case "*" | "**":
            for sequence, times in ((left, right), (right, left)):
                if isinstance(sequence, str | list | tuple) and isinstance(times, int):
                    check(_length(sequence) * times)
            huge = any(isinstance(side, int) and abs(side) > 2**64 for side in (left, right))
            if huge or (operator == "**" and isinstance(right, int) and right > 64):
                raise OutOfFuel("it computes too large a number")
        case "%" if isinstance(left, str):
            if _WIDE_PERCENT.search(left):
                raise OutOfFuel("it formats with too wide a field")
            check(len(left) + weight(right) * (left.count("%") if isinstance(right, Mapping) else 1))


def check_method(text: str, name: str, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[Any, ...]:
    """Before a method of a string is called: the arguments to call it with. Raises OutOfFuel for a result that would be too large."""
    if name in _REFUSED_METHODS or any(isinstance(argument, int) and argument > MAX_CHARACTERS for argument in arguments):
        raise OutOfFuel(f"it calls {name} on a string")
    if name == "replace" and len(arguments) >= 2:
        _check_replacement(text, arguments[0], arguments[1])
    elif name == "join" and len(arguments) == 1:
        parts = list(arguments[0])
        check(weight(parts) + len(text) * len(parts))
        return (parts,)
    elif name in ("format", "format_map"):
        if _WIDE_BRACES.search(text):
            raise OutOfFuel("it formats with too wide a field")
        check(len(text) + text.count("{") * weight((arguments, dict(named))))
    return arguments


def _length(sequence: str | list[Any] | tuple[Any, ...]) -> int:
    return len(sequence) if isinstance(sequence, str) else ELEMENT * len(sequence)


def _check_replacement(text: str, old: Any, new: Any) -> None:
    if isinstance(old, str) and isinstance(new, str) and len(new) > len(old):
        check(len(text) + text.count(old) * (len(new) - len(old)))


@pass_eval_context
def _replace(context: EvalContext, text: Any, old: str, new: str, count: int | None = None) -> str:
    text = str(checked(text))
    _check_replacement(text, old, new)
    return filters.do_replace(context, text, old, new, count)


@pass_eval_context
def _join(context: EvalContext, parts: Iterable[Any], d: str = "", attribute: str | int | None = None) -> str:
    parts = list(parts)
    check(weight(parts) + weight(d) * len(parts))
    return filters.sync_do_join(context, parts, d, attribute)


def _string(value: Any) -> str:
    return str(checked(value))


def _indent(text: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    check(len(text) + (len(width) if isinstance(width, str) else width) * (text.count("\n") + 1))
    return filters.do_indent(text, width, first, blank)


def _round(value: float, precision: int = 0, method: Any = "common") -> float:
    if abs(precision) > MAX_DECIMALS:
        raise OutOfFuel("it rounds to too many places")
    return filters.do_round(value, precision, method)


@pass_environment
def _sum(environment: SandboxedEnvironment, values: Iterable[Any], attribute: str | int | None = None, start: float = 0) -> Any:
    if not isinstance(start, int | float):
        raise OutOfFuel("it adds up what are no numbers")
    return filters.sync_do_sum(environment, values, attribute, start)


BOUNDED_FILTERS: Mapping[str, Callable[..., Any]] = {
    "indent": _indent,
    "join": _join,
    "replace": _replace,
    "round": _round,
    "string": _string,
    "sum": _sum,
}
