"""The management API's addresses."""

from django.urls import URLPattern, URLResolver, include, path
from rest_framework.routers import SimpleRouter

from gateway.rest.audit import AuditEntryViewSet
from gateway.rest.keys import KeyViewSet
from gateway.rest.projects import ProjectViewSet
from gateway.rest.schema import DocsView, SchemaView
from gateway.rest.session import SessionView
from gateway.rest.tenants import TenantViewSet
from gateway.rest.trust_groups import TrustGroupViewSet
from gateway.rest.usage import UsageViewSet

router = SimpleRouter(use_regex_path=False)
router.register("tenants", TenantViewSet, basename="tenant")
router.register("projects", ProjectViewSet, basename="project")
router.register("keys", KeyViewSet, basename="key")
router.register("trust-groups", TrustGroupViewSet, basename="trust-group")
router.register("audit", AuditEntryViewSet, basename="audit-entry")
router.register("usage", UsageViewSet, basename="usage")

urlpatterns: list[URLPattern | URLResolver] = [
    path("v1/session/", SessionView.as_view(), name="session"),
    path("v1/", include(router.urls)),
    path("schema/", SchemaView.as_view(), name="schema"),
    path("docs/", DocsView.as_view(), name="docs"),
]
