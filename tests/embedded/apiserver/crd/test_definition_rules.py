"""These tests check the validation of CRDs against a real server's recorded answers, and the rules of updates."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from koord.embedded.apiserver.crd.definition_strategy import NO_WEBHOOK_CONVERSION
from tests.embedded.apiserver.crd.definition_fixture import CRDS, GROUP, DefinitionApi, definition, started, version

Obj = dict[str, Any]
PROBES: dict[str, Obj] = json.loads(Path(__file__).with_name("definition_probes.json").read_text())


@pytest.fixture
async def api() -> AsyncIterator[DefinitionApi]:
    made = await started()
    yield made
    await made.server.close()


@pytest.mark.parametrize("name", PROBES)
async def test_as_the_real_server(name: str, api: DefinitionApi) -> None:
    real = PROBES[name]
    status, body = await api.post(f"{CRDS}?dryRun=All", real["definition"])
    assert status == real["status"], body
    if status >= 400:
        # Go tells an empty list from none, where this server stores neither.
        message = real["message"].replace("spec.versions: Invalid value: []", "spec.versions: Invalid value: null")
        assert body["message"] == message
        assert [c["field"] for c in body["details"]["causes"]] == [c["field"] for c in real["causes"]]
    else:
        assert body["spec"] == real["spec"]
        assert [text for text in (api.warning,) if text] == real["warnings"]


async def test_conversion_webhooks_are_refused(api: DefinitionApi) -> None:
    webhook = {"clientConfig": {"url": "https://example.com"}, "conversionReviewVersions": ["v1"]}
    body = definition(conversion={"strategy": "Webhook", "webhook": webhook})
    status, answer = await api.post(CRDS, body)
    assert status == 422
    assert answer["message"].endswith(f"spec.conversion.strategy: Forbidden: {NO_WEBHOOK_CONVERSION}")


NAME = f"tops.{GROUP}"
IMMUTABLE = "field is immutable"


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        pytest.param({"scope": "Cluster"}, f'spec.scope: Invalid value: "Cluster": {IMMUTABLE}', id="scope"),
        pytest.param({"group": "z.com"}, f'spec.group: Invalid value: "z.com": {IMMUTABLE}', id="group"),
        pytest.param(
            {"names": {"kind": "Foo", "listKind": "FooList"}},
            f'spec.names.kind: Invalid value: "Foo": {IMMUTABLE}',
            id="kind",
        ),
        pytest.param({"names": {"plural": "q"}}, f'spec.names.plural: Invalid value: "q": {IMMUTABLE}', id="plural"),
        pytest.param(
            {"versions": [version("v2")]},
            'status.storedVersions[0]: Invalid value: "v1": missing from spec.versions; v1 was previously a storage '
            "version, and must remain in spec.versions until a storage migration ensures no data remains persisted in "
            "v1 and removes v1 from status.storedVersions",
            id="stored-version-goes",
        ),
    ],
)
async def test_updates_that_are_refused(api: DefinitionApi, change: Obj, complaint: str) -> None:
    await api.define(definition())
    status, body = await api.redefine(NAME, change)
    assert status == 422
    assert complaint in body["message"]


async def test_generation_follows_the_spec(api: DefinitionApi) -> None:
    await api.define(definition())
    _, same = await api.patch(f"{CRDS}/{NAME}", {"metadata": {"labels": {"a": "b"}}})
    assert same["metadata"]["generation"] == 1
    _, other = await api.redefine(NAME, {"names": {"shortNames": ["t"]}})
    assert other["metadata"]["generation"] == 2


async def test_an_unconditional_put_is_refused(api: DefinitionApi) -> None:
    made = await api.define(definition())
    made["metadata"].pop("resourceVersion")
    status, body = await api.put(f"{CRDS}/{NAME}", made)
    assert (status, body["reason"]) == (422, "Invalid")
