"""Every page: with nothing to show, with something, for those who may not, and without a line of inline script or style."""

import re

import pytest
from django.test import Client
from django.urls import reverse

from gateway.console.security import POLICY
from tenants import services
from tenants.models import ApiKey, AuditEntry, Project, Tenant
from tests.gateway.console.conftest import COMMAND_LINE, PASSWORD, announce

pytestmark = pytest.mark.django_db

LISTS = ["overview", "tenants", "keys", "usage", "audit"]
OPERATORS_ONLY = ["create-tenant", "create-key"]
OF_A_TENANT = ["tenant", "suspend-tenant", "create-project"]
OF_A_KEY = ["key", "rotate-key", "revoke-key"]
INLINE = re.compile(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son[a-z]+=|hx-on|\bjs:|javascript:|https?://(?!testserver)", re.IGNORECASE)


@pytest.fixture
def things(acme, empty_registry) -> dict[str, object]:
    project = acme.projects.get()
    created = services.create_key(project.pk, {"name": "production"}, actor=COMMAND_LINE)
    announce(empty_registry)
    empty_registry.sadd("lockgate:workers", "worker-that-died")
    return {"tenant": acme, "project": project, "key": created.key, "secret": created.secret}


def addresses(things: dict[str, object]) -> list[str]:
    found = [reverse(f"console:{name}") for name in (*LISTS, *OPERATORS_ONLY)]
    found += [reverse(f"console:{name}", args=[things["tenant"].pk]) for name in OF_A_TENANT]
    found += [reverse("console:project", args=[things["project"].pk])]
    found += [reverse(f"console:{name}", args=[things["key"].pk]) for name in OF_A_KEY]
    return found


def shown(response) -> str:
    assert response.status_code == 200, response.content[:500]
    html = response.content.decode()
    assert not INLINE.search(html), INLINE.search(html)
    assert response.headers["Content-Security-Policy"] == POLICY
    assert "no-store" in response.headers["Cache-Control"]
    return html


@pytest.mark.parametrize("name", [*LISTS, *OPERATORS_ONLY])
def test_every_list_says_what_to_do_while_there_is_nothing(olga, name):
    shown(olga.get(reverse(f"console:{name}")))


def test_every_page_shows_what_there_is_and_never_a_secret(olga, things):
    for address in addresses(things):
        html = shown(olga.get(address))
        assert things["secret"] not in html
        assert things["key"].digest not in html


def test_every_page_stays_shut_without_a_sign_in_and_without_a_role(nick, things):
    for address in addresses(things):
        response = Client().get(address)
        assert response.status_code == 302
        assert response.headers["Location"].startswith("/console/login/?next=")
        assert nick.get(address).status_code == 403


def test_an_auditor_sees_every_page_but_no_form_that_changes_anything(paul, things):
    for address in addresses(things):
        response = paul.get(address)
        name = response.resolver_match.url_name
        if name in {*OPERATORS_ONLY, "suspend-tenant", "create-project", "rotate-key", "revoke-key"}:
            assert response.status_code == 403
            assert "Auditors read everything and change nothing." in response.content.decode()
        else:
            html = shown(response)
            forms = re.findall(r'<form[^>]*method="post"[^>]*>(.*?)</form>', html, re.DOTALL)
            assert not [form for form in forms if "Save" in form or "button danger" in form]


def test_an_auditors_posts_change_nothing(paul, things):
    tenant, project, key = things["tenant"].pk, things["project"].pk, things["key"].pk
    before = tuple(model.objects.count() for model in (Tenant, Project, ApiKey, AuditEntry))
    targets = {
        tenant: ["update-tenant", "cache-policy", "purge-cache", "suspend-tenant", "resume-tenant", "create-project"],
        project: ["project", "suspend-project", "resume-project"],
        key: ["key", "rotate-key", "revoke-key"],
        None: ["create-tenant", "create-key"],
    }
    for target, name in [(target, name) for target, names in targets.items() for name in names]:
        address = reverse(f"console:{name}", args=[target] if target else [])
        assert paul.post(address, {"name": "x", "grace": "0", "project": project, "cache_policy": "off"}).status_code == 403, name
        assert Client().post(address).status_code == 302, name
    assert tuple(model.objects.count() for model in (Tenant, Project, ApiKey, AuditEntry)) == before


def test_a_post_without_a_csrf_token_is_refused(acme, olga):
    strict = Client(enforce_csrf_checks=True)
    strict.cookies = olga.cookies
    assert strict.post(reverse("console:suspend-tenant", args=[acme.pk])).status_code == 403
    acme.refresh_from_db()
    assert acme.suspended_at is None


def test_what_does_not_exist_is_a_404_page(olga):
    nowhere = "5b1d9f0e-0000-4000-8000-000000000000"
    for name in [*OF_A_TENANT, *OF_A_KEY, "project"]:
        assert olga.get(reverse(f"console:{name}", args=[nowhere])).status_code == 404
    assert olga.post(reverse("console:resume-tenant", args=[nowhere])).status_code == 404


def test_an_operator_signs_in_comes_where_he_wanted_and_signs_out(db, empty_registry):
    services.create_operator("olga", password=PASSWORD, actor=COMMAND_LINE)
    client = Client()
    wrong = client.post("/console/login/", {"name": "olga", "password": "guess"})
    assert (wrong.status_code, "Name or password is wrong." in wrong.content.decode()) == (401, True)
    assert "guess" not in wrong.content.decode()
    right = client.post("/console/login/", {"name": "olga", "password": PASSWORD, "next": "/console/keys/"})
    assert (right.status_code, right.headers["Location"]) == (302, "/console/keys/")
    assert client.get("/console/keys/").status_code == 200
    client.post("/console/logout/")
    assert client.get("/console/keys/").status_code == 302


def test_signing_in_leads_to_this_site_only(db, empty_registry):
    services.create_operator("olga", password=PASSWORD, actor=COMMAND_LINE)
    for elsewhere in ("https://example.org/", "//example.org/", "javascript:alert(1)"):
        response = Client().post("/console/login/", {"name": "olga", "password": PASSWORD, "next": elsewhere})
        assert response.headers["Location"] == "/console/"


def test_an_expired_session_inside_htmx_leads_to_the_login(db, empty_registry):
    response = Client().get("/console/keys/?search=x", headers={"HX-Request": "true"})
    assert (response.status_code, response.headers["HX-Redirect"]) == (401, "/console/login/?next=%2Fconsole%2F")


def test_the_theme_is_kept_in_a_cookie_and_drawn_by_the_server(olga):
    response = olga.post("/console/theme/", {"theme": "dark", "next": "/console/keys/"})
    assert response.headers["Location"] == "/console/keys/"
    assert 'data-theme="dark"' in olga.get("/console/").content.decode()
    olga.post("/console/theme/", {"theme": "system"})
    assert "data-theme" not in olga.get("/console/").content.decode()


def test_the_front_door_leads_to_the_console(client):
    assert client.get("/").headers["Location"] == "/console/"


def test_static_files_are_served_without_collecting_them(client):
    for name in ("console.css", "console.js", "vendor/htmx.min.js", "vendor/hx-sse.min.js", "vendor/lucide.svg", "icon.svg"):
        response = client.get(f"/static/console/{name}")
        assert response.status_code == 200, name


def test_script_and_style_together_stay_within_their_budget(client):
    import gzip

    names = ("console.css", "console.js", "vendor/htmx.min.js", "vendor/hx-sse.min.js")
    contents = [client.get(f"/static/console/{name}").content for name in names]
    assert sum(len(gzip.compress(content)) for content in contents) < 120_000


def test_every_icon_that_a_page_uses_is_in_the_sprite(client):
    from pathlib import Path

    sprite = client.get("/static/console/vendor/lucide.svg").content.decode()
    used = {name for path in Path("templates").rglob("*.html") for name in re.findall(r'{% icon "([a-z0-9-]+)" %}', path.read_text())}
    from gateway.console.shell import MAP

    used |= {entry.icon for _, entries in MAP for entry in entries}
    assert not [name for name in used if f'id="{name}"' not in sprite]
