"""What lists share: filters that live in the address, a page by key, and which of "never had" and "filtered out" an empty one is."""

from typing import Any, TypeVar

from django import forms
from django.db import models
from django.db.models import QuerySet
from django.http import HttpRequest

from tenants import selectors
from tenants.errors import Invalid

PAGE_SIZE = 50
Row = TypeVar("Row", bound=models.Model)


def filtered(form: forms.Form) -> dict[str, Any]:
    """The filters that are set and valid; a tenant as its id."""
    form.is_valid()
    return {name: value.pk if isinstance(value, models.Model) else value for name, value in form.cleaned_data.items() if value}


def listing(request: HttpRequest, query: QuerySet[Row], order: tuple[str, ...], form: forms.Form) -> dict[str, Any]:
    """Context for a list: `rows`, `next`, `first_page`, `filters` (how many are set)."""
    after = request.GET.get("after", "")
    try:
        page = selectors.page(query, order, size=PAGE_SIZE, after=after)
    except Invalid:  # a cursor of another day's page: begin at the start
        after = ""
        page = selectors.page(query, order, size=PAGE_SIZE)
    return {"rows": page.rows, "next": page.next, "first_page": not after, "form": form, "filters": len(filtered(form))}
