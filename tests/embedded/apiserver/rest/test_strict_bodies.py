"""Keys that a body has twice are found in every format, in kube-apiserver's words (recorded from 1.35)."""

from __future__ import annotations

import pytest

from tests.embedded.apiserver.rest_harness import APPLY, JSON6902, MERGE, NS, STRATEGIC, Api, config_map, started

YAML = "application/yaml"
JSON = "application/json"
UNMARSHAL = "yaml: unmarshal errors:\n"
HEAD = b"apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: t\n"
TWICE = HEAD + b"data:\n  a: c\n  a: d\n"
TWICE_JSON = b'{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"t"},"data":{"a":"b","a":"c"}}'
CASES = [
    pytest.param(APPLY, TWICE, 'line 7: key "a" already set in map', id="apply-yaml"),
    pytest.param(APPLY, TWICE_JSON, 'line 1: key "a" already set in map', id="apply-json"),
    pytest.param(MERGE, b'{"data":{"x":"1","x":"2"}}', 'duplicate field "data.x"', id="merge"),
    pytest.param(STRATEGIC, b'{"data":{"x":"1","x":"2"}}', 'duplicate field "data.x"', id="strategic"),
    pytest.param(
        JSON6902,
        b'[{"op":"add","path":"/data/y","value":"1","value":"2"}]',
        'json patch duplicate field "[0].value"',
        id="json-patch",
    ),
    pytest.param(
        JSON6902,
        b'[{"op":"add","path":"/data/y","value":"1","foo":"2"}]',
        'json patch unknown field "[0].foo"',
        id="json-patch-unknown",
    ),
]


@pytest.fixture
async def api() -> Api:
    made = await started()
    assert (await made.post(f"{NS}/configmaps", config_map("t")))[0] == 201
    return made


@pytest.mark.parametrize(("content_type", "body", "complaint"), CASES)
async def test_patches(api: Api, content_type: str, body: bytes, complaint: str) -> None:
    path = f"{NS}/configmaps/t?fieldManager=m&force=true" if content_type == APPLY else f"{NS}/configmaps/t?a=b"
    status, said = await api.patch(f"{path}&fieldValidation=Strict", body, content_type)
    assert complaint in said["message"]
    if content_type == APPLY:
        lines = f"error strict decoding YAML: error converting YAML to JSON: {UNMARSHAL}  {complaint}"
        assert (status, said["message"]) == (400, lines)
    else:
        assert (status, f"strict decoding error: {complaint}" in said["message"]) == (422, True)
    status, _ = await api.patch(f"{path}&fieldValidation=Ignore", body, content_type)
    assert (status, api.warning) == (200, "")
    status, _ = await api.patch(path, body, content_type)
    assert (status, api.warning) == (200, '299 - "' + complaint.replace('"', '\\"') + '"')


async def test_creating_from_yaml(api: Api) -> None:
    path = f"{NS}/configmaps"
    body = TWICE.replace(b"name: t", b"name: u")
    status, said = await api.post(f"{path}?fieldValidation=Strict", body, content_type=YAML)
    lines = f'{UNMARSHAL}  line 7: key "a" already set in map'
    why = f'ConfigMap in version "v1" cannot be handled as a ConfigMap: strict decoding error: {lines}'
    assert (status, said["message"]) == (400, why)
    status, _ = await api.post(path, body + b"foo: 1\n", content_type=YAML)  # unknown fields are not looked for then
    assert (status, api.warning) == (201, '299 - "line 7: key \\"a\\" already set in map"')


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'{\n\t"apiVersion":"v1",\n\t"kind":"ConfigMap",\n\t"metadata":{"name":"t"},\n\t"data":{"a":"b"}}', 200),
        (b"apiVersion:\tv1\nkind:\tConfigMap\nmetadata:\n  name: t\n", 200),
        (b"apiVersion: v1\t\nkind: ConfigMap\nmetadata:\n  name: t\n", 200),
        (b"apiVersion: v1\nkind: ConfigMap\nmetadata:\n\tname: t\n", 400),
    ],
    ids=["json", "separator", "trailing", "indent"],
)
async def test_tabs(api: Api, body: bytes, status: int) -> None:
    found, said = await api.patch(f"{NS}/configmaps/t?fieldManager=m&force=true", body, APPLY)
    assert found == status
    if status == 400:
        why = "error converting YAML to JSON: yaml: line 4: found character that cannot start any token"
        assert said["message"] == f"error decoding YAML: {why}"
