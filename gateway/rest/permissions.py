"""Who may do what over REST: as in the console."""

from typing import TYPE_CHECKING

from rest_framework.permissions import SAFE_METHODS, BasePermission

from gateway.console.people import role_of

if TYPE_CHECKING:  # DRF imports this module while it defines APIView
    from rest_framework.request import Request
    from rest_framework.views import APIView


class OperatorWritesAuditorReads(BasePermission):
    """An operator may do everything, an auditor may read everything, nobody else anything."""

    message = "Operators only; auditors may read."

    def has_permission(self, request: "Request", view: "APIView") -> bool:
        role = role_of(request.user)
        return role == "operator" or (role == "auditor" and request.method in SAFE_METHODS)
