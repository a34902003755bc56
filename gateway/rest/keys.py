"""/api/v1/keys/: API keys and their limits."""

from datetime import timedelta
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


class KeyViewSet(ManagementViewSet):
    """API keys and their limits. The secret is in the answer to creation and rotation and nowhere else."""

    @lists(serializers.KeyQuery, serializers.Key)
    def list(self, request: Request) -> Response:
        return paged(request, serializers.KeyQuery, selectors.keys, selectors.NEWEST_FIRST, serializers.Key)

    @extend_schema(request=serializers.KeyBody, responses={201: serializers.CreatedKey})
    def create(self, request: Request) -> Response:
        body = read(serializers.KeyBody, request.data)
        created = services.create_key(body.pop("project"), body, actor=self.actor)
        return Response(serializers.CreatedKey(created).data, status=status.HTTP_201_CREATED)

    @extend_schema(responses=serializers.Key)
    def retrieve(self, request: Request, pk: UUID) -> Response:
        return Response(serializers.Key(selectors.one(selectors.keys(), pk)).data)

    @extend_schema(request=serializers.KeyChange, responses=serializers.Key)
    def partial_update(self, request: Request, pk: UUID) -> Response:
        """Change what is given: name, expiry, limits."""
        key = services.update_key(pk, read(serializers.KeyChange, request.data), actor=self.actor)
        return Response(serializers.Key(key).data)

    @extend_schema(request=serializers.KeyRotation, responses={201: serializers.CreatedKey})
    @action(detail=True, methods=["post"])
    def rotate(self, request: Request, pk: UUID) -> Response:
        """Make a new key with the same settings; the old one works for the grace more."""
        body = read(serializers.KeyRotation, request.data)
        created = services.rotate_key(pk, grace=timedelta(seconds=body.get("grace_s", 0)), actor=self.actor)
        return Response(serializers.CreatedKey(created).data, status=status.HTTP_201_CREATED)

    @extend_schema(request=None, responses=serializers.Key)
    @action(detail=True, methods=["post"])
    def revoke(self, request: Request, pk: UUID) -> Response:
        """End the key for good. The row stays, so that its usage keeps its name."""
        return Response(serializers.Key(services.revoke_key(pk, actor=self.actor)).data)
