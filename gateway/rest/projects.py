"""/api/v1/projects/: projects and their limits."""

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


class ProjectViewSet(ManagementViewSet):
    """Projects and their limits. A project is never deleted: suspend it."""

    @lists(serializers.ProjectQuery, serializers.Project)
    def list(self, request: Request) -> Response:
        return paged(request, serializers.ProjectQuery, selectors.projects, selectors.BY_NAME, serializers.Project)

    @extend_schema(request=serializers.ProjectBody, responses={201: serializers.Project})
    def create(self, request: Request) -> Response:
        body = read(serializers.ProjectBody, request.data)
        project = services.create_project(body.pop("tenant"), body.pop("name"), body, actor=self.actor)
        return Response(serializers.Project(project).data, status=status.HTTP_201_CREATED)

    @extend_schema(responses=serializers.Project)
    def retrieve(self, request: Request, pk: UUID) -> Response:
        return Response(serializers.Project(selectors.one(selectors.projects(), pk)).data)

    @extend_schema(request=serializers.ProjectChange, responses=serializers.Project)
    def partial_update(self, request: Request, pk: UUID) -> Response:
        """Change what is given: name, limits."""
        project = services.update_project(pk, read(serializers.ProjectChange, request.data), actor=self.actor)
        return Response(serializers.Project(project).data)

    @extend_schema(request=None, responses=serializers.Project)
    @action(detail=True, methods=["post"])
    def suspend(self, request: Request, pk: UUID) -> Response:
        """Refuse new calls by the project's keys until it is resumed."""
        return Response(serializers.Project(services.suspend_project(pk, actor=self.actor)).data)

    @extend_schema(request=None, responses=serializers.Project)
    @action(detail=True, methods=["post"])
    def resume(self, request: Request, pk: UUID) -> Response:
        """Take the project's calls again."""
        return Response(serializers.Project(services.resume_project(pk, actor=self.actor)).data)
