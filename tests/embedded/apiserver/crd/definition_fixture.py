"""This module builds CRDs in few words, and a started server that takes them."""

from __future__ import annotations

from typing import Any

from koord.embedded.apiserver.store.object_store import ObjectStore
from tests.embedded.apiserver import rest_harness
from tests.embedded.apiserver.rest_harness import Api

Obj = dict[str, Any]
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
GROUP = "toys.example.com"
ANYTHING: Obj = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


def version(name: str = "v1", schema: Obj | None = None, **more: Any) -> Obj:
    return {"name": name, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema or ANYTHING}, **more}


def schema(**fields: Obj) -> Obj:
    return {"type": "object", "properties": {"spec": {"type": "object", "properties": fields}}}


def definition(plural: str = "tops", kind: str = "Top", *versions: Obj, names: Obj | None = None, **spec: Any) -> Obj:
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {"plural": plural, "kind": kind, **(names or {})},
            "versions": list(versions) or [version()],
            **spec,
        },
    }


class DefinitionApi(Api):
    async def define(self, body: Obj) -> Obj:
        status, answer = await self.post(CRDS, body)
        assert status == 201, answer
        return await self.defined(body["metadata"]["name"])

    async def defined(self, name: str) -> Obj:
        status, answer = await self.get(f"{CRDS}/{name}")
        assert status == 200, answer
        found: Obj = answer
        return found

    async def redefine(self, name: str, spec: Obj) -> tuple[int, Any]:
        return await self.patch(f"{CRDS}/{name}", {"spec": spec})

    async def make(
        self, name: str, spec: Obj | None = None, *, at: str = "v1", plural: str = "tops", **meta: Any
    ) -> Any:
        body = {"apiVersion": f"{GROUP}/{at}", "kind": "Top", "metadata": {"name": name, **meta}, "spec": spec or {}}
        return await self.post(place(at, plural), body)


def place(at: str = "v1", plural: str = "tops", name: str = "") -> str:
    path = f"/apis/{GROUP}/{at}/namespaces/default/{plural}"
    return f"{path}/{name}" if name else path


async def started(store: ObjectStore | None = None) -> DefinitionApi:
    made = await rest_harness.started(store, seed=2)
    return DefinitionApi(made.server, made.clock, made.chance)


def conditions(obj: Obj) -> dict[str, tuple[str, str]]:
    return {c["type"]: (c["status"], c["reason"]) for c in obj["status"]["conditions"]}
