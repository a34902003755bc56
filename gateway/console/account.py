"""Signing in and out, and the theme."""

from django.contrib.auth import login, logout
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods, require_POST

from gateway.console.people import role_of
from gateway.console.shell import THEME_COOKIE, THEMES, page
from gateway.console.sign_in import Denied, sign_in

ONE_YEAR_S = 365 * 24 * 3600


def _next(request: HttpRequest) -> str:
    """Where to go on to, on this site only."""
    wanted = request.POST.get("next") or request.GET.get("next") or ""
    if url_has_allowed_host_and_scheme(wanted, allowed_hosts={request.get_host()}, require_https=request.is_secure()):
        return wanted
    return reverse("console:overview")


@sensitive_post_parameters("password")
@require_http_methods(["GET", "POST"])
def login_view(request: HttpRequest) -> HttpResponse:
    if request.method == "GET":
        if role_of(request.user) is not None:
            return HttpResponseRedirect(_next(request))
        return page(request, "console/login.html", {"next": _next(request)})
    name = request.POST.get("name", "")
    outcome = sign_in(request, name, request.POST.get("password", ""))
    if isinstance(outcome, Denied):
        status = 401 if outcome.retry_after_s is None else 429
        response = page(request, "console/login.html", {"next": _next(request), "name": name, "error": outcome.message}, status=status)
        if outcome.retry_after_s is not None:
            response.headers["Retry-After"] = str(outcome.retry_after_s)
        return response
    login(request, outcome)
    return HttpResponseRedirect(_next(request))


@require_POST
def logout_view(request: HttpRequest) -> HttpResponse:
    logout(request)
    return HttpResponseRedirect(reverse("console:login"))


@require_POST
def theme_view(request: HttpRequest) -> HttpResponse:
    """Keep the theme in a cookie, so that the server draws the page in it; the system's theme needs none."""
    response = HttpResponseRedirect(_next(request))
    theme = request.POST.get("theme", "")
    if theme in THEMES:
        response.set_cookie(THEME_COOKIE, theme, max_age=ONE_YEAR_S, samesite="Lax", secure=request.is_secure(), httponly=True)
    else:
        response.delete_cookie(THEME_COOKIE, samesite="Lax")
    return response
