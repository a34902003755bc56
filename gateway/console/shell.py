"""What every page stands in: who may see it, the rail, the theme."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, Concatenate, ParamSpec
from urllib.parse import urlencode

from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.utils.cache import add_never_cache_headers

from gateway.console.people import role_of
from tenants.errors import NotFound

P = ParamSpec("P")
View = Callable[Concatenate[HttpRequest, P], HttpResponse]
THEMES = ("light", "dark")
THEME_COOKIE = "theme"


@dataclass(frozen=True)
class Entry:
    name: str
    icon: str
    route: str


MAP: tuple[tuple[str, tuple[Entry, ...]], ...] = (
    ("Operate", (Entry("Overview", "layout-dashboard", "console:overview"),)),
    ("Customers", (Entry("Tenants", "building-2", "console:tenants"), Entry("Keys", "key-round", "console:keys"))),
    ("Money", (Entry("Usage", "chart-column", "console:usage"),)),
    ("Govern", (Entry("Audit", "scroll-text", "console:audit"),)),
)


def reading(view: "View[P]") -> "View[P]":
    """For operators and auditors; what isn't found answers 404."""

    @wraps(view)
    def guarded(request: HttpRequest, /, *args: P.args, **kwargs: P.kwargs) -> HttpResponse:
        role = role_of(request.user)
        if role is None:
            return _not_in(request)
        try:
            return view(request, *args, **kwargs)
        except NotFound as error:
            raise Http404(str(error)) from error

    return guarded


def writing(view: "View[P]") -> "View[P]":
    """For operators."""

    @reading
    @wraps(view)
    def guarded(request: HttpRequest, /, *args: P.args, **kwargs: P.kwargs) -> HttpResponse:
        if role_of(request.user) != "operator":
            return page(request, "console/forbidden.html", {"title": "Not permitted"}, status=403)
        return view(request, *args, **kwargs)

    return guarded


def _not_in(request: HttpRequest) -> HttpResponse:
    if request.user.is_authenticated:
        return page(request, "console/forbidden.html", {"title": "Not permitted", "bare": True}, status=403)
    inside_htmx = request.headers.get("HX-Request") == "true"
    target = f"{reverse('console:login')}?{urlencode({'next': reverse('console:overview') if inside_htmx else request.get_full_path()})}"
    if inside_htmx:
        return HttpResponse(status=401, headers={"HX-Redirect": target})
    return HttpResponseRedirect(target)


def theme_of(request: HttpRequest) -> str:
    """The chosen theme; empty for the system's."""
    theme = request.COOKIES.get(THEME_COOKIE, "")
    return theme if theme in THEMES else ""


def page(request: HttpRequest, template: str, context: dict[str, Any], *, status: int = 200) -> HttpResponse:
    """The template within the shell. Never cached: it holds what only those signed in may see."""
    shell = {"map": MAP, "theme": theme_of(request), "role": role_of(request.user), "here": request.get_full_path()}
    response = render(request, template, {**shell, **context}, status=status)
    add_never_cache_headers(response)
    return response
