"""Pages of projects: create, settings, suspension."""

from uuid import UUID

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_POST

from gateway.console.forms import ProjectForm, limits_of
from gateway.console.people import actor_of, role_of
from gateway.console.shell import page, reading, writing
from tenants import selectors, services
from tenants.models import Project


@require_http_methods(["GET", "POST"])
@writing
def create_project(request: HttpRequest, tenant_id: UUID) -> HttpResponse:
    tenant = selectors.one(selectors.tenants(), tenant_id)
    form = ProjectForm(request.POST or None)

    def write(values: dict[str, object]) -> Project:
        return services.create_project(tenant_id, str(values.pop("name")), values, actor=actor_of(request))

    project = form.carry_out(write) if request.method == "POST" else None
    if isinstance(project, Project):
        messages.success(request, f"Project {project.name} was created.")
        return redirect("console:project", project.pk)
    return page(request, "console/projects/new.html", {"form": form, "tenant": tenant})


@require_http_methods(["GET", "POST"])
@reading
def project(request: HttpRequest, project_id: UUID) -> HttpResponse:
    found = selectors.one(selectors.projects(), project_id)
    form = ProjectForm(initial={"name": found.name, **limits_of(found)})
    if request.method == "POST":
        if role_of(request.user) != "operator":
            return page(request, "console/forbidden.html", {"title": "Not permitted"}, status=403)
        form = ProjectForm(request.POST)
        if form.carry_out(lambda values: services.update_project(project_id, values, actor=actor_of(request))) is not None:
            messages.success(request, "Settings and limits were saved. They hold from the next call on.")
            return redirect("console:project", project_id)
    now = timezone.now()
    keys = selectors.page(selectors.keys(project=project_id), selectors.NEWEST_FIRST, size=50)
    context = {"project": found, "form": form, "keys": [(key, selectors.key_state(key, now)) for key in keys.rows]}
    return page(request, "console/projects/detail.html", context)


@require_POST
@writing
def suspend_project(request: HttpRequest, project_id: UUID) -> HttpResponse:
    services.suspend_project(project_id, actor=actor_of(request))
    messages.success(request, "The project is suspended. New calls by its keys get 403 until it is resumed.")
    return redirect("console:project", project_id)


@require_POST
@writing
def resume_project(request: HttpRequest, project_id: UUID) -> HttpResponse:
    services.resume_project(project_id, actor=actor_of(request))
    messages.success(request, "The project is active. Its keys' calls are taken again.")
    return redirect("console:project", project_id)
