import io
import warnings

from django.core.management import call_command


def test_the_schema_is_valid_and_drawn_without_a_warning():
    out = io.StringIO()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        call_command("spectacular", "--validate", "--fail-on-warn", stdout=out)
    assert "/api/v1/keys/{id}/rotate/" in out.getvalue()


def test_the_schema_is_served_to_anyone(client, db):
    response = client.get("/api/schema/", headers={"accept": "application/json"})
    assert response.status_code == 200
    assert response.json()["info"]["title"] == "Lockgate management API"
