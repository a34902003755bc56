"""The model's own chat template, in a sandbox with a budget.

A template comes with the model, so the operator chose it; a caller never supplies one. Still it runs on callers' messages, and must neither
hang nor fill the memory. Wherever a template can repeat itself it pays from a budget first: loop bodies, macros, call blocks (`Fuel`, put
into the syntax tree before it is compiled). Whatever makes values grow is weighed before it is done (`bounds`): operators, methods of
strings, filters, the output. Past the budget the rendering raises where it stands, so the thread that runs it is free again: there is
nothing to kill. The deadline counts the thread's own CPU time: a busy machine refuses nobody.

What isn't bounded is one comparison of values that a template nests in themselves: no honest template does so, and whoever serves a model
trusts its template that far.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from time import thread_time
from typing import Any, cast

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from gateway.text import bounds
from gateway.text.bounds import OutOfFuel
from gateway.text.errors import TemplateRefused, TokenizerUnsupported

MAX_STEPS = 1_000_000
MAX_CPU_S = 2.0
_SPEND = "lockgate_spend"
_JOIN = "lockgate_join"
_STEPS_BETWEEN_CLOCKS = 256


class ChatMessage(dict[str, str]):
    """One message as a template sees it: role and content, and name or tool_call_id where the caller gave one."""


class Fuel:
    """What one rendering may still spend."""

    __slots__ = ("_deadline", "_steps", "_until_clock", "max_steps")

    def __init__(self, *, max_steps: int, max_cpu_s: float) -> None:
        self.max_steps = max_steps
        self._steps = max_steps
        self._deadline = thread_time() + max_cpu_s
        self._until_clock = _STEPS_BETWEEN_CLOCKS

    def spend(self) -> str:
        """One step. Raises OutOfFuel when none is left; returns nothing to print."""
        self._steps -= 1
        if self._steps < 0:
            raise OutOfFuel(f"it takes more than {self.max_steps} steps")
        self._until_clock -= 1
        if self._until_clock < 0:
            self._until_clock = _STEPS_BETWEEN_CLOCKS
            if thread_time() > self._deadline:
                raise OutOfFuel("it takes too long")
        return ""


class GenerationTag(Extension):
    """`{% generation %}…{% endgeneration %}` marks the assistant's text for training; for us it is what stands inside."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"+", "*", "%", "**"})

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        bounds.check_operation(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, obj: Any, *args: Any, **kwargs: Any) -> Any:
        text = getattr(getattr(obj, "__wrapped__", obj), "__self__", None)  # the sandbox wraps str.format
        if isinstance(text, str):
            args = bounds.check_method(text, getattr(obj, "__name__", ""), args, kwargs)
        return super().call(context, obj, *args, **kwargs)


def _raise_exception(message: str) -> str:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now(UTC).strftime(pattern)


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: tuple[str, str] | None = None, sort_keys: bool = False
) -> str:
    """As chat templates expect it: plain JSON, nothing escaped for HTML."""
    lines = bounds.weight(value) if indent is None else bounds.weight(value) // bounds.ELEMENT * max(indent, 1)
    bounds.check(max(lines, bounds.weight(value)))
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _environment() -> _Environment:
    environment = _Environment(trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols], finalize=bounds.checked)
    environment.filters |= {"tojson": _tojson, **bounds.BOUNDED_FILTERS}
    for unbounded in bounds.REMOVED_FILTERS:
        del environment.filters[unbounded]
    environment.globals = {
        name: value for name, value in environment.globals.items() if name in ("range", "dict", "namespace", "joiner", "cycler")
    } | {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
    return environment


def _call(name: str, arguments: Sequence[nodes.Expr] = ()) -> nodes.Call:
    return nodes.Call(nodes.Name(name, "load"), list(arguments), [], None, None)


def _compile(source: str) -> jinja2.Template:
    environment = _environment()
    tree = environment.parse(source)
    if any(name.name in (_SPEND, _JOIN) for name in tree.find_all(nodes.Name)):
        raise TokenizerUnsupported(f"the chat template uses the reserved names {_SPEND} or {_JOIN}")
    for repeated in list(tree.find_all((nodes.For, nodes.Macro, nodes.CallBlock))):
        body = cast("list[nodes.Node]", repeated.body)  # type: ignore[attr-defined]
        body.insert(0, nodes.ExprStmt(_call(_SPEND)))
    _Joins().visit(tree)
    tree.set_environment(environment)
    for node in tree.find_all(nodes.Node):
        if getattr(node, "lineno", None) is None:
            node.lineno = 1
    globals_ = environment.make_globals(None)
    return jinja2.Template.from_code(environment, environment.compile(tree), globals_)


class _Joins(jinja2.visitor.NodeTransformer):
    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802  # jinja's visitor protocol
        self.generic_visit(node)
        return _call(_JOIN, node.nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    max_steps: int = MAX_STEPS
    max_cpu_s: float = MAX_CPU_S


SMALL_BUDGET = Budget(max_steps=5_000, max_cpu_s=0.02)
"""For rendering where it would keep others waiting: what doesn't fit is rendered again, off the event loop."""


class ChatTemplate:
    """A model's chat template, compiled once. Safe to share between threads."""

    def __init__(self, source: str, *, bos_token: str | None, eos_token: str | None) -> None:
        """Raises TokenizerUnsupported when the template isn't valid."""
        try:
            self._template = _compile(source)
        except jinja2.TemplateError as error:
            raise TokenizerUnsupported(f"the chat template isn't valid: {error}") from error
        self._constants = {
            "bos_token": bos_token or "",
            "eos_token": eos_token or "",
            "tools": None,
            "documents": None,
            "add_generation_prompt": True,
        }

    def render(self, messages: Sequence[Mapping[str, str]], *, budget: Budget | None = None) -> str:
        """The prompt, with the assistant's turn opened. Raises TemplateRefused (for the caller), OutOfFuel past the budget."""
        budget = budget or Budget()
        fuel = Fuel(max_steps=budget.max_steps, max_cpu_s=budget.max_cpu_s)
        spend: Callable[[], str] = fuel.spend
        pieces: list[str] = []
        characters = 0
        try:
            for piece in self._template.generate(self._constants, messages=messages, **{_SPEND: spend, _JOIN: bounds.joined}):
                pieces.append(piece)
                characters += len(piece)
                bounds.check(characters)
        except jinja2.TemplateError as error:
            raise TemplateRefused(f"The model's chat template refused the messages: {error}") from error
        except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError, RecursionError, MemoryError) as error:
            raise TemplateRefused(f"The model's chat template can't render these messages ({type(error).__name__}).") from error
        return "".join(pieces)
