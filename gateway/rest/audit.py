"""GET /api/v1/audit/."""

from rest_framework.request import Request
from rest_framework.response import Response

from gateway.rest import serializers
from gateway.rest.views import ManagementViewSet, lists, paged
from tenants import selectors


class AuditEntryViewSet(ManagementViewSet):
    """Who changed what, when and from where. Read-only."""

    @lists(serializers.AuditQuery, serializers.AuditEntry)
    def list(self, request: Request) -> Response:
        return paged(request, serializers.AuditQuery, selectors.audit_entries, selectors.LATEST_FIRST, serializers.AuditEntry)
