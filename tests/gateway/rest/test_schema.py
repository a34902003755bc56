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


def test_the_docs_page_names_every_operation_and_needs_no_script(client, db):
    from gateway.rest.schema import METHODS, document

    html = client.get("/api/docs/").content.decode()
    for path, item in document()["paths"].items():
        for method in METHODS:
            if method in item:
                assert f'id="{item[method]["operationId"]}"' in html, path
    assert "<script" not in html.replace('<script src="', "")
    assert "http://" not in html.replace("http://testserver", "")
    assert "https://" not in html
