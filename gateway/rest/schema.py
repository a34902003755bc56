"""The API's OpenAPI document, and a page that shows it without a line of script."""

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views import View
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.views import SpectacularAPIView
from rest_framework.permissions import AllowAny

METHODS = ("get", "post", "put", "patch", "delete")


class SchemaView(SpectacularAPIView):
    """The OpenAPI document. Public: it holds no data."""

    permission_classes = [AllowAny]
    serve_public = True


def document() -> dict[str, Any]:
    """The OpenAPI document as a value."""
    schema: dict[str, Any] = SchemaGenerator().get_schema(request=None, public=True)  # type: ignore[no-untyped-call]
    return schema


class DocsView(View):
    def get(self, request: HttpRequest) -> HttpResponse:
        """Every operation of the document, by noun."""
        schema = document()
        return render(request, "rest/docs.html", {"groups": groups(schema), "info": schema["info"]})


def groups(schema: dict[str, Any]) -> list[dict[str, Any]]:
    """The document's operations with their references resolved, grouped by the first part of the path."""
    found: dict[str, list[dict[str, Any]]] = {}
    for path, item in schema["paths"].items():
        noun = path.removeprefix("/api/v1/").split("/")[0]
        for method in METHODS:
            if method in item:
                found.setdefault(noun, []).append(_operation(schema, path, method, item[method]))
    return [{"noun": noun, "operations": operations} for noun, operations in found.items()]


def _operation(schema: dict[str, Any], path: str, method: str, operation: dict[str, Any]) -> dict[str, Any]:
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    return {
        "id": operation["operationId"],
        "method": method.upper(),
        "path": path,
        "description": operation.get("description", ""),
        "parameters": [
            {"name": parameter["name"], "place": parameter["in"], "required": parameter.get("required", False)}
            | _described(schema, parameter["schema"], parameter.get("description", ""))
            for parameter in operation.get("parameters", [])
        ],
        "body": None if body is None else _fields(schema, body),
        "responses": [
            {"status": code, "fields": _fields(schema, response["content"]["application/json"]["schema"]) if "content" in response else []}
            for code, response in operation["responses"].items()
        ],
    }


def _resolved(schema: dict[str, Any], part: dict[str, Any]) -> dict[str, Any]:
    if "$ref" in part:
        target: dict[str, Any] = schema["components"]["schemas"][part["$ref"].rsplit("/", 1)[1]]
        return target
    if "allOf" in part:
        return _resolved(schema, part["allOf"][0])
    return part


def _fields(schema: dict[str, Any], part: dict[str, Any]) -> list[dict[str, Any]]:
    resolved = _resolved(schema, part)
    required = resolved.get("required", [])
    return [
        {"name": name, "required": name in required, "read_only": field.get("readOnly", False)} | _described(schema, field, "")
        for name, field in resolved.get("properties", {}).items()
    ]


def _described(schema: dict[str, Any], field: dict[str, Any], description: str) -> dict[str, Any]:
    resolved = _resolved(schema, field)
    kind = resolved.get("format") or resolved.get("type", "object")
    if kind == "array":
        inner = resolved["items"]
        kind = f"list of {inner['$ref'].rsplit('/', 1)[1] if '$ref' in inner else inner.get('type', 'object')}"
    return {
        "type": kind,
        "choices": resolved.get("enum", []),
        "nullable": bool(resolved.get("nullable") or field.get("nullable")),
        "description": description or field.get("description", "") or "",
    }
