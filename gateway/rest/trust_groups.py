"""/api/v1/trust-groups/: tenants that share a cache."""

from uuid import UUID

from drf_spectacular.utils import extend_schema
from rest_framework import status
from rest_framework.request import Request
from rest_framework.response import Response

from gateway.rest import serializers
from gateway.rest.strict import PageQuery, read
from gateway.rest.views import ManagementViewSet, lists, paged
from tenants import selectors, services


class TrustGroupViewSet(ManagementViewSet):
    """Groups of tenants that agreed to share one cache domain. A tenant joins by its cache policy."""

    @lists(PageQuery, serializers.TrustGroup)
    def list(self, request: Request) -> Response:
        return paged(request, PageQuery, selectors.trust_groups, selectors.BY_NAME, serializers.TrustGroup)

    @extend_schema(request=serializers.TrustGroupBody, responses={201: serializers.TrustGroup})
    def create(self, request: Request) -> Response:
        group = services.create_trust_group(read(serializers.TrustGroupBody, request.data)["name"], actor=self.actor)
        return self._shown(group.pk, status.HTTP_201_CREATED)

    @extend_schema(responses=serializers.TrustGroup)
    def retrieve(self, request: Request, pk: UUID) -> Response:
        return self._shown(pk, status.HTTP_200_OK)

    @extend_schema(request=serializers.TrustGroupBody, responses=serializers.TrustGroup)
    def partial_update(self, request: Request, pk: UUID) -> Response:
        services.update_trust_group(pk, read(serializers.TrustGroupBody, request.data), actor=self.actor)
        return self._shown(pk, status.HTTP_200_OK)

    @extend_schema(responses={204: None})
    def destroy(self, request: Request, pk: UUID) -> Response:
        """Remove a group that has no members."""
        services.delete_trust_group(pk, actor=self.actor)
        return Response(status=status.HTTP_204_NO_CONTENT)

    def _shown(self, pk: UUID, code: int) -> Response:
        return Response(serializers.TrustGroup(selectors.one(selectors.trust_groups(), pk)).data, status=code)
