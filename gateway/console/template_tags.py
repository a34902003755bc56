"""What templates need to draw figures, times, icons and links."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest
from django.template import Library
from django.templatetags.static import static
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from gateway.console import figures

register = Library()


def _figure(name: str, write: Callable[[float | None], str]) -> None:
    """A filter for numbers; what a template can't find (a dead worker has no load) is absent too."""
    register.filter(name, lambda value: write(None if value == "" else value))


_figure("compact", figures.compact)
_figure("seconds", figures.seconds)
_figure("percent", figures.percent)
_figure("span", lambda value: figures.ABSENT if value is None else figures.seconds(float(max(1, round(value)))))


@register.simple_tag
def icon(name: str) -> SafeString:
    """An icon of the sprite, silent to screen readers: the word stands beside it."""
    return format_html('<svg class="icon" aria-hidden="true"><use href="{}#{}"></use></svg>', static("console/vendor/lucide.svg"), name)


@register.filter
def moment(at: datetime | None) -> SafeString | str:
    """A time: relative within a day, the whole of it on hover."""
    if not at:
        return figures.ABSENT
    at = at.astimezone(UTC)
    words = figures.moment(at, timezone.now())
    return format_html('<time datetime="{}" title="{} UTC">{}</time>', at.isoformat(), f"{at:%Y-%m-%d %H:%M:%S}", words)


@register.simple_tag(takes_context=True)
def query(context: dict[str, Any], **changes: object) -> str:
    """The page's query string with these changes; empty values are left out."""
    request: HttpRequest = context["request"]
    values = {name: value for name, value in request.GET.items() if value}
    values.update({name: str(value) if value is not None else "" for name, value in changes.items()})
    return "?" + urlencode({name: value for name, value in values.items() if value})


@register.filter
def limit(value: object) -> str:
    """A limit in a table: grouped digits, "none" where the scope sets none."""
    return "none" if value is None else figures.grouped(int(str(value)))
