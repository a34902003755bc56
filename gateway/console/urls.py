"""The console's addresses."""

from django.urls import URLPattern, URLResolver, path

from gateway.console import account, audit, keys, overview, projects, tenants, usage

app_name = "console"

urlpatterns: list[URLPattern | URLResolver] = [
    path("", overview.overview, name="overview"),
    path("live/overview/", overview.live, name="live"),
    path("login/", account.login_view, name="login"),
    path("logout/", account.logout_view, name="logout"),
    path("theme/", account.theme_view, name="theme"),
    path("tenants/", tenants.tenants, name="tenants"),
    path("tenants/new/", tenants.create_tenant, name="create-tenant"),
    path("tenants/<uuid:tenant_id>/", tenants.tenant, name="tenant"),
    path("tenants/<uuid:tenant_id>/settings/", tenants.update_tenant, name="update-tenant"),
    path("tenants/<uuid:tenant_id>/cache-policy/", tenants.set_cache_policy, name="cache-policy"),
    path("tenants/<uuid:tenant_id>/purge-cache/", tenants.purge_cache, name="purge-cache"),
    path("tenants/<uuid:tenant_id>/suspend/", tenants.suspend_tenant, name="suspend-tenant"),
    path("tenants/<uuid:tenant_id>/resume/", tenants.resume_tenant, name="resume-tenant"),
    path("tenants/<uuid:tenant_id>/projects/new/", projects.create_project, name="create-project"),
    path("projects/<uuid:project_id>/", projects.project, name="project"),
    path("projects/<uuid:project_id>/suspend/", projects.suspend_project, name="suspend-project"),
    path("projects/<uuid:project_id>/resume/", projects.resume_project, name="resume-project"),
    path("keys/", keys.keys, name="keys"),
    path("keys/new/", keys.create_key, name="create-key"),
    path("keys/<uuid:key_id>/", keys.key, name="key"),
    path("keys/<uuid:key_id>/rotate/", keys.rotate_key, name="rotate-key"),
    path("keys/<uuid:key_id>/revoke/", keys.revoke_key, name="revoke-key"),
    path("usage/", usage.usage, name="usage"),
    path("usage.csv", usage.export, name="usage-export"),
    path("audit/", audit.audit, name="audit"),
]
