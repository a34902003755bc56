import json

import pytest
from django.core.management import call_command

from tenants import services
from tenants.models import ApiKey, Tenant

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis_client")]


def test_first_start_keeps_what_it_made_and_the_next_leaves_it(settings, tmp_path):
    settings.LOCKGATE_HOME = tmp_path
    call_command("initialise")
    kept = tmp_path / "demo.json"
    assert kept.stat().st_mode & 0o077 == 0
    made = json.loads(kept.read_text())
    assert ApiKey.objects.get(digest=services.digest(made["api_key"])).tenant.name == "Demo"
    call_command("initialise")
    assert json.loads(kept.read_text()) == made


def test_a_deployment_makes_no_demo(settings, tmp_path):
    settings.LOCKGATE_HOME = tmp_path
    call_command("initialise", "--no-demo")
    assert not Tenant.objects.exists()
    assert not list(tmp_path.iterdir())
