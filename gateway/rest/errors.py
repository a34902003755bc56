"""Domain errors as responses: 400 names each wrong field, 404 hides what is out of scope, 409 says which state is in the way."""

from typing import Any

from rest_framework import status
from rest_framework.response import Response
from rest_framework.views import exception_handler

from tenants.errors import DomainError, Invalid, NotFound


def respond(error: Exception, context: dict[str, Any]) -> Response | None:
    """DRF's EXCEPTION_HANDLER."""
    if isinstance(error, Invalid):
        return Response({field: [message] for field, message in error.errors.items()}, status=status.HTTP_400_BAD_REQUEST)
    if isinstance(error, NotFound):
        return Response({"detail": str(error)}, status=status.HTTP_404_NOT_FOUND)
    if isinstance(error, DomainError):
        return Response({"detail": str(error)}, status=status.HTTP_409_CONFLICT)
    return exception_handler(error, context)
