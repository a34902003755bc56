"""The audit trail: who changed what, filtered and paged."""

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_GET

from gateway.console.forms import AuditFilter
from gateway.console.lists import filtered, listing
from gateway.console.shell import page, reading
from tenants import selectors
from tenants.models import AuditEntry


@require_GET
@reading
def audit(request: HttpRequest) -> HttpResponse:
    form = AuditFilter(request.GET)
    context = listing(request, selectors.audit_entries(**filtered(form)), selectors.LATEST_FIRST, form)
    context["entries"] = [(entry, differences(entry)) for entry in context["rows"]]
    return page(request, "console/audit.html", context)


def differences(entry: AuditEntry) -> list[tuple[str, Any, Any]]:
    """(field, before, after), in the order of the change."""
    return [(field, entry.before.get(field), entry.after.get(field)) for field in dict.fromkeys([*entry.before, *entry.after])]
