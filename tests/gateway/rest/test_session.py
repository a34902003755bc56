import pytest
from rest_framework.test import APIClient

from gateway.console import sign_in
from tenants import services
from tests.gateway.rest.conftest import COMMAND_LINE, PASSWORD

pytestmark = pytest.mark.django_db
PATH = "/api/v1/session/"


@pytest.fixture
def ada(redis_client):
    return services.create_operator("ada", password=PASSWORD, actor=COMMAND_LINE).user


def try_password(client: APIClient, password: str, name: str = "ada"):
    return client.post(PATH, {"name": name, "password": password}, format="json")


def test_a_program_signs_in_writes_with_its_csrf_token_and_signs_out(ada):
    client = APIClient(enforce_csrf_checks=True)
    session = try_password(client, PASSWORD).json()
    assert (session["name"], session["role"]) == ("ada", "operator")
    refused = client.post("/api/v1/tenants/", {"name": "Acme"}, format="json")
    assert refused.status_code == 403
    headers = {"X-CSRFToken": session["csrf_token"]}
    assert client.post("/api/v1/tenants/", {"name": "Acme"}, format="json", headers=headers).status_code == 201
    assert client.delete(PATH, headers=headers).status_code == 204
    assert client.get("/api/v1/tenants/").status_code == 403


def test_a_wrong_password_and_an_unknown_name_get_the_same_answer(ada):
    wrong = try_password(APIClient(), "wrong")
    unknown = try_password(APIClient(), PASSWORD, name="nobody")
    assert (wrong.status_code, wrong.json()) == (unknown.status_code, unknown.json()) == (403, {"detail": "Name or password is wrong."})


def test_someone_without_a_role_cannot_sign_in(ada, django_user_model):
    django_user_model.objects.create_user("nick", password=PASSWORD)
    assert try_password(APIClient(), PASSWORD, name="nick").status_code == 403


def test_guessing_is_bounded_and_the_answer_says_for_how_long(ada):
    for _ in range(sign_in.ATTEMPTS):
        assert try_password(APIClient(), "guess").status_code == 403
    refused = try_password(APIClient(REMOTE_ADDR="192.0.2.99"), PASSWORD)
    assert refused.status_code == 429
    assert 0 < int(refused.headers["Retry-After"]) <= sign_in.WINDOW_S
    assert "Try again in 15 min" in refused.json()["detail"]
    other_name_same_address = try_password(APIClient(), PASSWORD, name="bob")
    assert other_name_same_address.status_code == 429


def test_signing_in_forgets_the_failed_attempts(ada):
    for _ in range(sign_in.ATTEMPTS + 5):
        try_password(APIClient(), "guess")
        if _ % 5 == 4:
            assert try_password(APIClient(), PASSWORD).status_code == 200


def test_signing_in_still_works_while_valkey_is_away(ada, monkeypatch, settings, caplog):
    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    sign_in._client.cache_clear()
    try:
        assert try_password(APIClient(), PASSWORD).status_code == 200
    finally:
        sign_in._client.cache_clear()
    assert "aren't counted" in caplog.text
