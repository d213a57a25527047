"""This program has gnostic encode one OpenAPI 2 document (needs Go).

Run python -m tests.embedded.apiserver.protobuf.record_swagger. Keys are in the order of their numbers and
free values are equal in JSON and YAML, so that the bytes can be compared.
"""

from __future__ import annotations

import base64
import json
import subprocess
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RECORD = HERE / "swagger.json"
MODULE = HERE.parents[3] / "assets/kubernetes"

THING: dict[str, Any] = {
    "format": "f",
    "title": "t",
    "description": "d",
    "default": {},
    "multipleOf": 0.5,
    "maximum": 10,
    "exclusiveMaximum": True,
    "minimum": -1.5,
    "exclusiveMinimum": True,
    "maxLength": 300,
    "minLength": 1,
    "pattern": "^é$",
    "maxItems": 2,
    "minItems": 1,
    "uniqueItems": True,
    "maxProperties": 4,
    "minProperties": 3,
    "required": ["a", "b"],
    "enum": [1, 2.5, True],
    "additionalProperties": {"type": ["string"]},
    "type": ["object"],
    "items": {"$ref": "#/definitions/Thing"},
    "allOf": [{"$ref": "#/definitions/Thing"}],
    "properties": {"a": {"additionalProperties": True, "type": ["object"]}, "b": {"items": {"type": ["integer"]}}},
    "externalDocs": {"description": "d", "url": "https://docs.example"},
    "example": 7,
    "x-kubernetes-group-version-kind": [],
    "x-kubernetes-int-or-string": True,
}
PARAMETERS: list[dict[str, Any]] = [
    {"$ref": "#/parameters/limit"},
    {"required": True, "in": "path", "description": "d", "name": "p", "type": "string", "uniqueItems": True},
    {"in": "query", "description": "d", "name": "q", "type": "integer", "format": "int64", "uniqueItems": True},
    {"description": "d", "name": "body", "in": "body", "required": True, "schema": {"$ref": "#/definitions/Thing"}},
]
OPERATION: dict[str, Any] = {
    "tags": ["t"],
    "summary": "s",
    "description": "d",
    "operationId": "o",
    "produces": ["application/json"],
    "consumes": ["*/*"],
    "parameters": PARAMETERS,
    "responses": {"200": {"description": "OK", "schema": {"type": ["string"]}}, "401": {"description": "No"}},
    "schemes": ["https"],
    "deprecated": True,
    "security": [{"BearerToken": ["s"]}],
    "x-kubernetes-action": 1,
}
DOCUMENT: dict[str, Any] = {
    "swagger": "2.0",
    "info": {"title": "Kubernetes", "version": "v1", "description": "d"},
    "paths": {
        "/things": {
            method: OPERATION if method == "get" else {"operationId": method, "responses": {}}
            for method in ("get", "put", "post", "delete", "options", "head", "patch")
        }
        | {"parameters": PARAMETERS[:2]}
    },
    "definitions": {"Thing": THING, "Empty": {}},
    "parameters": {"limit": {"in": "query", "name": "limit", "type": "integer"}},
    "security": [{"BearerToken": []}],
    "securityDefinitions": {"BearerToken": {"type": "apiKey", "name": "authorization", "in": "header"}},
}


def gnostic(way: str, given: bytes) -> bytes:
    """Run gnostic: `write` turns JSON into protobuf, `read` turns that into YAML."""
    command = ["go", "run", "-mod=readonly", str(HERE / "swagger.go"), way]
    return subprocess.run(command, cwd=MODULE, input=given, capture_output=True, check=True).stdout


if __name__ == "__main__":
    written = base64.b64encode(gnostic("write", json.dumps(DOCUMENT).encode())).decode()
    RECORD.write_text(json.dumps({"document": DOCUMENT, "protobuf": written}, indent=1) + "\n")
