"""Pages of tenants: list, create, settings, cache policy, suspension."""

from uuid import UUID

from django.contrib import messages
from django.db.models import Count, Q
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from gateway.console.forms import CachePolicyForm, NewTenantForm, TenantFilter, TenantForm, limits_of
from gateway.console.lists import filtered, listing
from gateway.console.people import actor_of
from gateway.console.shell import page, reading, writing
from tenants import selectors, services
from tenants.models import Tenant

RECENT = 8


@require_GET
@reading
def tenants(request: HttpRequest) -> HttpResponse:
    form = TenantFilter(request.GET)
    query = selectors.tenants(**filtered(form))
    total = query.count()
    counted = query.annotate(
        project_count=Count("projects", distinct=True),
        key_count=Count("keys", filter=Q(keys__revoked_at=None), distinct=True),
    )
    return page(request, "console/tenants/list.html", {"total": total, **listing(request, counted, selectors.BY_NAME, form)})


@require_http_methods(["GET", "POST"])
@writing
def create_tenant(request: HttpRequest) -> HttpResponse:
    form = NewTenantForm(request.POST or None)

    def write(values: dict[str, object]) -> Tenant:
        group = values.pop("trust_group")
        return services.create_tenant(
            str(values.pop("name")),
            values,
            actor=actor_of(request),
            cache_policy=str(values.pop("cache_policy")),
            trust_group_id=getattr(group, "pk", None),
        )

    tenant = form.carry_out(write) if request.method == "POST" else None
    if isinstance(tenant, Tenant):
        messages.success(request, f"Tenant {tenant.name} was created with a project named default. Create a key to call with.")
        return redirect("console:tenant", tenant.pk)
    return page(request, "console/tenants/new.html", {"form": form})


@require_GET
@reading
def tenant(request: HttpRequest, tenant_id: UUID) -> HttpResponse:
    return _tenant_page(request, selectors.one(selectors.tenants(), tenant_id))


@require_POST
@writing
def update_tenant(request: HttpRequest, tenant_id: UUID) -> HttpResponse:
    form = TenantForm(request.POST)
    if form.carry_out(lambda values: services.update_tenant(tenant_id, values, actor=actor_of(request))) is None:
        return _tenant_page(request, selectors.one(selectors.tenants(), tenant_id), settings=form)
    return _done(request, tenant_id, "Settings and limits were saved. They hold from the next call on.")


@require_POST
@writing
def set_cache_policy(request: HttpRequest, tenant_id: UUID) -> HttpResponse:
    form = CachePolicyForm(request.POST)

    def write(values: dict[str, object]) -> Tenant:
        group = getattr(values["trust_group"], "pk", None)
        return services.set_cache_policy(tenant_id, str(values["cache_policy"]), trust_group_id=group, actor=actor_of(request))

    if form.carry_out(write) is None:
        return _tenant_page(request, selectors.one(selectors.tenants(), tenant_id), policy=form)
    return _done(request, tenant_id, "The cache policy was saved. What was cached before is forgotten.")


@require_POST
@writing
def purge_cache(request: HttpRequest, tenant_id: UUID) -> HttpResponse:
    services.purge_cache(tenant_id, actor=actor_of(request))
    return _done(request, tenant_id, "The cache is forgotten. The next calls compute their whole prompts.")


@require_http_methods(["GET", "POST"])
@writing
def suspend_tenant(request: HttpRequest, tenant_id: UUID) -> HttpResponse:
    found = selectors.one(selectors.tenants(), tenant_id)
    if request.method == "GET":
        keys = selectors.keys(tenant=tenant_id, state="active").count() + selectors.keys(tenant=tenant_id, state="expiring").count()
        return page(request, "console/tenants/suspend.html", {"tenant": found, "keys": keys})
    services.suspend_tenant(tenant_id, actor=actor_of(request))
    return _done(request, tenant_id, "The tenant is suspended. New calls get 403 until it is resumed.")


@require_POST
@writing
def resume_tenant(request: HttpRequest, tenant_id: UUID) -> HttpResponse:
    services.resume_tenant(tenant_id, actor=actor_of(request))
    return _done(request, tenant_id, "The tenant is active. Its calls are taken again.")


def _done(request: HttpRequest, tenant_id: UUID, message: str) -> HttpResponseRedirect:
    messages.success(request, message)
    return HttpResponseRedirect(reverse("console:tenant", args=[tenant_id]))


def _tenant_page(
    request: HttpRequest, tenant: Tenant, *, settings: TenantForm | None = None, policy: CachePolicyForm | None = None
) -> HttpResponse:
    initial = {"name": tenant.name, "weight": tenant.weight, "priority": tenant.priority, "time_zone": tenant.time_zone}
    now = timezone.now()
    keys = selectors.page(selectors.keys(tenant=tenant.pk), selectors.NEWEST_FIRST, size=RECENT)
    wrong = settings is not None or policy is not None
    context = {
        "tenant": tenant,
        "settings": settings or TenantForm(initial=initial | limits_of(tenant)),
        "policy": policy or CachePolicyForm(initial={"cache_policy": tenant.cache_policy, "trust_group": tenant.trust_group_id}),
        "projects": selectors.page(
            selectors.projects(tenant=tenant.pk).annotate(key_count=Count("keys", filter=Q(keys__revoked_at=None))),
            selectors.BY_NAME,
            size=200,
        ),
        "keys": [(key, selectors.key_state(key, now)) for key in keys.rows],
        "more_keys": keys.next is not None,
        "entries": selectors.page(selectors.audit_entries(tenant=tenant.pk), selectors.LATEST_FIRST, size=RECENT).rows,
    }
    return page(request, "console/tenants/detail.html", context, status=422 if wrong else 200)
