"""Signing in for programs: the same session that the console uses, with Django's CSRF token for everything that writes."""

from django.contrib.auth import login, logout
from django.middleware.csrf import get_token
from drf_spectacular.utils import extend_schema
from rest_framework import serializers, status
from rest_framework.parsers import JSONParser
from rest_framework.permissions import AllowAny, IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from gateway.console.people import role_of
from gateway.console.sign_in import Denied, sign_in
from gateway.rest.strict import StrictSerializer, read


class Credentials(StrictSerializer):
    name = serializers.CharField()
    password = serializers.CharField(trim_whitespace=False)


class Session(StrictSerializer):
    name = serializers.CharField(read_only=True)
    role = serializers.ChoiceField(choices=["operator", "auditor"], read_only=True)
    csrf_token = serializers.CharField(read_only=True, help_text="Send it as X-CSRFToken with every request that writes.")


class SessionView(APIView):
    parser_classes = [JSONParser]  # no form type: another site's form can't sign anybody in

    def get_permissions(self) -> list[AllowAny | IsAuthenticated]:
        return [AllowAny() if self.request.method == "POST" else IsAuthenticated()]

    @extend_schema(request=Credentials, responses=Session)
    def post(self, request: Request) -> Response:
        """Sign in. The answer sets the session cookie."""
        body = read(Credentials, request.data)
        outcome = sign_in(request._request, body["name"], body["password"])
        if isinstance(outcome, Denied):
            if outcome.retry_after_s is None:
                return Response({"detail": outcome.message}, status=status.HTTP_403_FORBIDDEN)
            headers = {"Retry-After": str(outcome.retry_after_s)}
            return Response({"detail": outcome.message}, status=status.HTTP_429_TOO_MANY_REQUESTS, headers=headers)
        login(request._request, outcome)
        token = get_token(request._request)
        return Response(Session({"name": outcome.get_username(), "role": role_of(outcome), "csrf_token": token}).data)

    @extend_schema(request=None, responses={204: None})
    def delete(self, request: Request) -> Response:
        """Sign out."""
        logout(request._request)
        return Response(status=status.HTTP_204_NO_CONTENT)
