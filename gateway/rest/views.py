"""What the views of the management API share: operators write, auditors read, lists are paged by key."""

from collections.abc import Callable
from functools import cache
from typing import Any

from django.db import models
from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import ViewSet

from gateway.console.people import actor_of
from gateway.rest.strict import PageQuery, read
from tenants import selectors
from tenants.services import Actor

PAGE_SIZE = 50


class ManagementViewSet(ViewSet):
    """JSON in, JSON out, for people who signed in (the settings' defaults: gateway.rest.permissions, gateway.rest.errors)."""

    lookup_value_converter = "uuid"

    @property
    def actor(self) -> Actor:
        return actor_of(self.request._request)


def paged(
    request: Request,
    query: type[PageQuery],
    select: Callable[..., QuerySet[Any]],
    order: tuple[str, ...],
    serializer: type[serializers.Serializer[Any]],
) -> Response:
    """The page that the query string asks for, its other fields given to `select`."""
    asked = read(query, request.query_params)
    after, size = asked.pop("after", ""), asked.pop("page_size", PAGE_SIZE)
    page: selectors.Page[models.Model] = selectors.page(select(**asked), order, size=size, after=after)
    return Response({"items": serializer(page.rows, many=True).data, "next": page.next})


@cache
def page_of(serializer: type[serializers.Serializer[Any]]) -> type[serializers.Serializer[Any]]:
    """The schema of a page of these."""
    fields = {
        "items": serializer(many=True),
        "next": serializers.CharField(allow_null=True, help_text="Give it as `after` to read on; null at the end."),
    }
    return type(f"{serializer.__name__}Page", (serializers.Serializer,), fields)


def lists(query: type[PageQuery], serializer: type[serializers.Serializer[Any]]) -> Callable[[Any], Any]:
    """Describes a list in the schema."""
    return extend_schema(parameters=[query], responses=page_of(serializer), filters=False)
