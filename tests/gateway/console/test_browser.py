"""What a person does and sees, in a real browser: at 1280 and at phone width, light and dark, and as axe judges it."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn
from django.core.asgi import get_asgi_application
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tenants import services
from tenants.models import ApiKey, Tenant
from tests.gateway.console.conftest import COMMAND_LINE, PASSWORD, announce

CHROMIUM = Path("/usr/bin/chromium")
AXE = Path(__file__).parent / "vendor" / "axe.min.js"
WCAG = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(not CHROMIUM.exists() and not os.environ.get("CI"), reason="needs Chromium: apt-get install chromium"),
]


@pytest.fixture(scope="module")
def browser(django_db_setup) -> Iterator[Browser]:
    """Of this module, not of the session as pytest-playwright's: while it lives, its event loop runs in the tests' own thread.

    So no asynchronous test can run then, and Django has to be told that it may.
    """
    flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--no-first-run"]
    with pytest.MonkeyPatch.context() as patch, sync_playwright() as playwright:
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
        with playwright.chromium.launch(executable_path=CHROMIUM, args=flags) as launched:
            yield launched


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    with browser.new_context(viewport={"width": 1280, "height": 800}) as context:
        yield context.new_page()


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The console under the server that it has in production."""
    started = threading.Event()

    class Server(uvicorn.Server):
        async def startup(self, sockets=None) -> None:
            await super().startup(sockets)
            started.set()

    server = Server(uvicorn.Config(get_asgi_application(), port=0, log_level="warning", lifespan="off", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run)
    thread.start()
    assert started.wait(20)
    port = server.servers[0].sockets[0].getsockname()[1]
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join(20)
    assert not thread.is_alive()


@pytest.fixture
def cast(browser, empty_registry, transactional_db) -> Tenant:
    services.create_operator("olga", password=PASSWORD, actor=COMMAND_LINE)
    return services.create_tenant("Acme", {"tokens_per_day": 5000}, actor=COMMAND_LINE)


def complaints_of(page: Page) -> list[str]:
    """Everything the browser complains of from now on: errors of scripts, refusals of the security policy, files that don't load."""
    said: list[str] = []
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("console", lambda message: said.append(message.text) if message.type in {"error", "warning"} else None)
    return said


def sign_in(page: Page, address: str) -> None:
    page.goto(f"{address}/console/")
    page.get_by_label("Name").fill("olga")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", name="Overview", level=1)).to_be_visible()


def judged_by_axe(page: Page) -> list[str]:
    page.evaluate(AXE.read_text() + "; undefined")  # evaluated by the debugger, so the page's policy stays as it is
    found = page.evaluate("(tags) => axe.run({runOnly: {type: 'tag', values: tags}})", WCAG)
    return [f"{page.url}: {violation['id']} {[node['target'] for node in violation['nodes']][:3]}" for violation in found["violations"]]


def test_an_operator_makes_a_tenant_and_a_key_and_sees_the_secret_once(page: Page, address: str, cast):
    said = complaints_of(page)
    sign_in(page, address)
    page.get_by_role("link", name="Tenants").click()
    page.get_by_role("link", name="Create tenant").click()
    page.get_by_label("Name").fill("Borealis")
    page.get_by_label("Tokens per day").fill("100000")
    page.get_by_role("button", name="Create tenant").click()
    expect(page.get_by_role("status")).to_contain_text("Tenant Borealis was created")
    page.get_by_role("link", name="Create key").click()
    page.get_by_label("Name").fill("production")
    page.get_by_role("button", name="Create key").click()
    secret = page.locator("#secret").text_content()
    key = ApiKey.objects.get(tenant__name="Borealis")
    assert key.digest == services.digest(secret)
    page.get_by_role("button", name="Copy key").click()
    expect(page.locator("[data-word]")).not_to_have_text("Copy key")
    page.get_by_role("link", name="I have copied it").click()
    expect(page.get_by_role("heading", name=key.prefix)).to_be_visible()
    assert secret not in page.content()
    page.get_by_role("link", name="Revoke key").click()
    page.get_by_role("button", name="Revoke key").click()
    expect(page.get_by_role("status")).to_contain_text("is revoked")
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("button", name="Sign in")).to_be_visible()
    assert said == []


def test_search_narrows_the_list_while_typing_and_lives_in_the_address(page: Page, address: str, cast):
    services.create_tenant("Borealis", actor=COMMAND_LINE)
    said = complaints_of(page)
    sign_in(page, address)
    page.goto(f"{address}/console/tenants/")
    page.get_by_label("Search").press_sequentially("bore")
    expect(page.get_by_role("link", name="Acme")).to_have_count(0)
    expect(page.get_by_role("link", name="Borealis")).to_be_visible()
    expect(page).to_have_url(f"{address}/console/tenants/?search=bore&state=")
    expect(page.get_by_label("Search")).to_be_focused()
    page.reload()
    expect(page.get_by_role("link", name="Acme")).to_have_count(0)
    assert said == []


def test_the_overview_moves_by_itself_and_stands_still_while_paused(page: Page, address: str, cast, empty_registry):
    announce(empty_registry, "worker-0")
    said = complaints_of(page)
    sign_in(page, address)
    expect(page.get_by_text("worker-0")).to_be_visible()
    announce(empty_registry, "worker-1")
    expect(page.get_by_text("worker-1", exact=True)).to_be_visible(timeout=10_000)
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_role("button", name="Resume")).to_have_attribute("aria-pressed", "true")
    announce(empty_registry, "worker-2")
    shown = page.evaluate(
        """() => new Promise(done => {
            let seen = 0;
            document.addEventListener("htmx:sse:before:message", () => { if (++seen == 2) done(document.body.innerText); });
        })"""
    )
    assert "worker-2" not in shown
    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_text("worker-2", exact=True)).to_be_visible(timeout=10_000)
    assert said == []


def test_an_open_overview_leads_to_the_login_once_signed_out_elsewhere(page: Page, address: str, cast):
    sign_in(page, address)
    other = page.context.new_page()
    other.goto(f"{address}/console/keys/")
    other.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("button", name="Sign in")).to_be_visible(timeout=15_000)


def test_the_console_works_by_keyboard_alone(page: Page, address: str, cast):
    page.goto(f"{address}/console/tenants/")
    page.keyboard.type("olga")
    page.keyboard.press("Tab")
    page.keyboard.type(PASSWORD)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Tenants", level=1)).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    expect(page.get_by_label("Search")).to_be_focused()


def test_the_theme_is_switched_and_kept(page: Page, address: str, cast):
    sign_in(page, address)
    page.get_by_role("button", name="Dark").click()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(14, 17, 22)"
    page.get_by_role("button", name="Light").click()
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(247, 248, 250)"


PAGES = ["", "tenants/", "tenants/new/", "tenants/{tenant}/", "tenants/{tenant}/suspend/", "projects/{project}/", "keys/", "keys/new/"]
PAGES += ["usage/", "keys/{key}/", "keys/{key}/rotate/", "keys/{key}/revoke/", "audit/", "tenants/?search=nothing"]


@pytest.mark.parametrize(("theme", "width"), [("light", 1280), ("dark", 390)])
def test_axe_finds_nothing_and_nothing_overflows(browser: Browser, address: str, cast, empty_registry, theme: str, width: int):
    project = cast.projects.get()
    key = services.create_key(project.pk, {"name": "production"}, actor=COMMAND_LINE).key
    announce(empty_registry)
    empty_registry.sadd("lockgate:workers", "worker-that-died")
    context = browser.new_context(viewport={"width": width, "height": 844}, color_scheme=theme)
    page = context.new_page()
    said = complaints_of(page)
    page.goto(f"{address}/console/login/")
    found = judged_by_axe(page)
    sign_in(page, address)
    for template in PAGES:
        page.goto(f"{address}/console/" + template.format(tenant=cast.pk, project=project.pk, key=key.pk))
        found += judged_by_axe(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, page.url
    page.goto(f"{address}/console/tenants/new/")
    page.get_by_label("Name").fill("Acme")
    page.get_by_role("button", name="Create tenant").click()
    expect(page.get_by_text("There is already a tenant named Acme.")).to_be_visible()
    found += judged_by_axe(page)
    page.goto(f"{address}/api/docs/")
    found += judged_by_axe(page)
    context.close()
    assert found == []
    assert said == []
