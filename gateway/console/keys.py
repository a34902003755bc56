"""Pages of API keys: list, create, settings, rotation, revocation."""

from datetime import timedelta
from uuid import UUID

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils import timezone
from django.views.decorators.http import require_GET, require_http_methods

from gateway.console.forms import KeyFilter, KeyForm, NewKeyForm, RotationForm, limits_of
from gateway.console.lists import filtered, listing
from gateway.console.people import actor_of, role_of
from gateway.console.shell import page, reading, writing
from tenants import selectors, services
from tenants.models import ApiKey, Project
from tenants.services import CreatedKey


@require_GET
@reading
def keys(request: HttpRequest) -> HttpResponse:
    form = KeyFilter(request.GET)
    query = selectors.keys(**filtered(form))
    context = listing(request, query, selectors.NEWEST_FIRST, form)
    now = timezone.now()
    context["keys"] = [(key, selectors.key_state(key, now)) for key in context["rows"]]
    return page(request, "console/keys/list.html", {"total": query.count(), **context})


@require_http_methods(["GET", "POST"])
@writing
def create_key(request: HttpRequest) -> HttpResponse:
    """The answer to a POST is the only page that ever shows the secret, so it is no redirect."""
    form = NewKeyForm(request.POST) if request.method == "POST" else NewKeyForm(initial={"project": request.GET.get("project", "")})

    def write(values: dict[str, object]) -> CreatedKey:
        project = values.pop("project")
        assert isinstance(project, Project), "the form's field gives one"
        return services.create_key(project.pk, values, actor=actor_of(request))

    created = form.carry_out(write) if request.method == "POST" else None
    if isinstance(created, CreatedKey):
        return page(request, "console/keys/created.html", {"key": created.key, "secret": created.secret, "base_url": _base_url(request)})
    return page(request, "console/keys/new.html", {"form": form})


@require_http_methods(["GET", "POST"])
@reading
def key(request: HttpRequest, key_id: UUID) -> HttpResponse:
    found = selectors.one(selectors.keys(), key_id)
    form = KeyForm(initial={"name": found.name, "expires_at": found.expires_at, **limits_of(found)})
    if request.method == "POST":
        if role_of(request.user) != "operator":
            return page(request, "console/forbidden.html", {"title": "Not permitted"}, status=403)
        form = KeyForm(request.POST)
        if form.carry_out(lambda values: _update(found, values, request)) is not None:
            messages.success(request, "Settings and limits were saved. They hold from the next call on.")
            return redirect("console:key", key_id)
    entries = selectors.page(selectors.audit_entries(target=str(key_id)), selectors.LATEST_FIRST, size=8).rows
    context = {"key": found, "state": selectors.key_state(found, timezone.now()), "form": form, "entries": entries}
    return page(request, "console/keys/detail.html", context)


@require_http_methods(["GET", "POST"])
@writing
def rotate_key(request: HttpRequest, key_id: UUID) -> HttpResponse:
    old = selectors.one(selectors.keys(), key_id)
    form = RotationForm(request.POST or None)

    def write(values: dict[str, object]) -> CreatedKey:
        return services.rotate_key(key_id, grace=timedelta(seconds=int(str(values["grace"]))), actor=actor_of(request))

    created = form.carry_out(write) if request.method == "POST" else None
    if isinstance(created, CreatedKey):
        old.refresh_from_db()
        context = {"key": created.key, "secret": created.secret, "old": old, "base_url": _base_url(request)}
        return page(request, "console/keys/created.html", context)
    return page(request, "console/keys/rotate.html", {"key": old, "form": form})


@require_http_methods(["GET", "POST"])
@writing
def revoke_key(request: HttpRequest, key_id: UUID) -> HttpResponse:
    found = selectors.one(selectors.keys(), key_id)
    if request.method == "GET":
        return page(request, "console/keys/revoke.html", {"key": found})
    services.revoke_key(key_id, actor=actor_of(request))
    messages.success(request, f"Key {found.prefix}… is revoked. Calls with it get 401.")
    return redirect("console:key", key_id)


def _update(found: ApiKey, values: dict[str, object], request: HttpRequest) -> ApiKey:
    """An expiry that wasn't touched is left out: the field shows whole minutes, and one in the past is no new error."""
    if _minute(values["expires_at"]) == _minute(found.expires_at):
        del values["expires_at"]
    return services.update_key(found.pk, values, actor=actor_of(request))


def _minute(value: object) -> str:
    return value.strftime("%Y-%m-%dT%H:%M") if hasattr(value, "strftime") else ""


def _base_url(request: HttpRequest) -> str:
    return request.build_absolute_uri("/v1")
