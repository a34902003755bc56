"""/api/v1/tenants/: tenants, their limits and cache policies."""

from uuid import UUID

from drf_spectacular.utils import extend_schema
from rest_framework import status
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from gateway.rest import serializers
from gateway.rest.strict import read
from gateway.rest.views import ManagementViewSet, lists, paged
from tenants import selectors, services


class TenantViewSet(ManagementViewSet):
    """Tenants, their limits and cache policy. A tenant is never deleted: suspend it."""

    @lists(serializers.TenantQuery, serializers.Tenant)
    def list(self, request: Request) -> Response:
        return paged(request, serializers.TenantQuery, selectors.tenants, selectors.BY_NAME, serializers.Tenant)

    @extend_schema(request=serializers.TenantBody, responses={201: serializers.Tenant})
    def create(self, request: Request) -> Response:
        """Make a tenant with a project named default."""
        body = read(serializers.TenantBody, request.data)
        policy = {"cache_policy": body.pop("cache_policy")} if "cache_policy" in body else {}
        group = body.pop("trust_group", None)
        tenant = services.create_tenant(body.pop("name"), body, actor=self.actor, trust_group_id=group, **policy)
        return Response(serializers.Tenant(tenant).data, status=status.HTTP_201_CREATED)

    @extend_schema(responses=serializers.Tenant)
    def retrieve(self, request: Request, pk: UUID) -> Response:
        return Response(serializers.Tenant(selectors.one(selectors.tenants(), pk)).data)

    @extend_schema(request=serializers.TenantChange, responses=serializers.Tenant)
    def partial_update(self, request: Request, pk: UUID) -> Response:
        """Change what is given: name, weight, priority, time zone, limits."""
        tenant = services.update_tenant(pk, read(serializers.TenantChange, request.data), actor=self.actor)
        return Response(serializers.Tenant(tenant).data)

    @extend_schema(request=serializers.CachePolicyBody, responses=serializers.Tenant)
    @action(detail=True, methods=["put"], url_path="cache-policy")
    def cache_policy(self, request: Request, pk: UUID) -> Response:
        """Say who may reuse the tenant's cached prefixes. What was cached until now is forgotten."""
        body = read(serializers.CachePolicyBody, request.data)
        tenant = services.set_cache_policy(pk, body["cache_policy"], trust_group_id=body.get("trust_group"), actor=self.actor)
        return Response(serializers.Tenant(tenant).data)

    @extend_schema(request=None, responses=serializers.Tenant)
    @action(detail=True, methods=["post"], url_path="purge-cache")
    def purge_cache(self, request: Request, pk: UUID) -> Response:
        """Forget all that is cached for the tenant; in a trust group, for all its members."""
        return Response(serializers.Tenant(services.purge_cache(pk, actor=self.actor)).data)

    @extend_schema(request=None, responses=serializers.Tenant)
    @action(detail=True, methods=["post"])
    def suspend(self, request: Request, pk: UUID) -> Response:
        """Refuse the tenant's new calls until it is resumed."""
        return Response(serializers.Tenant(services.suspend_tenant(pk, actor=self.actor)).data)

    @extend_schema(request=None, responses=serializers.Tenant)
    @action(detail=True, methods=["post"])
    def resume(self, request: Request, pk: UUID) -> Response:
        """Take the tenant's calls again."""
        return Response(serializers.Tenant(services.resume_tenant(pk, actor=self.actor)).data)
