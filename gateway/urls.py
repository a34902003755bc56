"""Django's addresses: console and management API."""

from django.urls import URLPattern, URLResolver, include, path
from django.views.generic import RedirectView

urlpatterns: list[URLPattern | URLResolver] = [
    path("", RedirectView.as_view(pattern_name="console:overview")),
    path("console/", include("gateway.console.urls")),
    path("api/", include("gateway.rest.urls")),
]
