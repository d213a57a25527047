"""Random writes to a real kube-apiserver and to our merge code: same object, same owners, same refusals."""

from __future__ import annotations

import json
import random
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest

from koord.api.patch.merge_patch import PatchFailed, merge_patch
from koord.api.patch.strategic_merge import strategic_merge
from koord.embedded.apiserver.merge.compare import equal_values
from koord.embedded.apiserver.merge.json_patch import json_patch
from koord.embedded.apiserver.merge.managed_fields import ownable, track_update, without_managed_fields
from koord.embedded.apiserver.merge.server_side_apply import (
    BEFORE_FIRST_APPLY,
    ApplyConflicts,
    ApplyResult,
    apply_config,
)
from koord.embedded.apiserver.merge.typed_value import UNTYPED
from koord.embedded.apiserver.schema.builtin_types import OBJECT_META, builtin_types
from koord.embedded.apiserver.schema.schema_node import SchemaNode
from koord.kube.transport.interface import APPLY_PATCH, JSON, JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH
from tools.controlplane import ControlPlane

pytestmark = pytest.mark.real

Obj = dict[str, Any]
NAMESPACE = "merge"


class Door:
    """One kind on the real server."""

    def __init__(self, plane: ControlPlane, api_version: str, kind: str, plural: str, node: SchemaNode) -> None:
        self._plane = plane
        self.api_version = api_version
        self.kind = kind
        self.node = node
        self.group = api_version.rpartition("/")[0]
        self.builtin = node.go_type != ""
        root = f"/apis/{api_version}" if self.group else f"/api/{api_version}"
        self._base = f"{root}/namespaces/{NAMESPACE}/{plural}"

    def call(self, method: str, path: str, body: Any = None, content: str = JSON, manager: str = "") -> tuple[int, Obj]:
        query = f"?fieldManager={manager}" if manager and "?" not in path else ""
        return call(self._plane, method, self._base + path + query, body, content)

    def create(self, obj: Obj, manager: str) -> Obj:
        code, made = self.call("POST", "", obj, manager=manager)
        assert code == 201, made
        return made


def call(plane: ControlPlane, method: str, path: str, body: Any = None, content: str = JSON) -> tuple[int, Obj]:
    headers = {"Authorization": f"Bearer {plane.token}", "Content-Type": content, "User-Agent": "merge-test/1"}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(plane.url + path, data=data, method=method, headers=headers)
    try:
        with urllib.request.urlopen(request, context=plane.ssl(), timeout=30) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as refused:
        text = refused.read()
        # A group that is not served yet is answered in plain words.
        is_json = refused.headers.get_content_type() == "application/json"
        return refused.code, json.loads(text) if is_json else {"message": text.decode()}


WIDGET_SCHEMA: Obj = {
    "type": "object",
    "properties": {
        "spec": {
            "type": "object",
            "properties": {
                "size": {"type": "integer"},
                "tags": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"},
                "plain": {"type": "array", "items": {"type": "integer"}},
                "parts": {
                    "type": "array",
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["name", "port"],
                    "items": {
                        "type": "object",
                        "required": ["name"],
                        "properties": {
                            "name": {"type": "string"},
                            "port": {"type": "integer", "default": 80},
                            "note": {"type": "string"},
                            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
                        },
                    },
                },
                "whole": {
                    "type": "object",
                    "x-kubernetes-map-type": "atomic",
                    "additionalProperties": {"type": "string"},
                },
                "open": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
            },
        },
        "status": {"type": "object", "properties": {"ready": {"type": "integer"}}},
    },
}


def widget_node() -> SchemaNode:
    text, number = SchemaNode(kind="string"), SchemaNode(kind="integer")
    part = SchemaNode(
        kind="object",
        fields={
            "name": text,
            "port": SchemaNode(kind="integer", default=80),
            "note": text,
            "labels": SchemaNode(kind="map", values=text),
        },
    )
    spec = SchemaNode(
        kind="object",
        fields={
            "size": number,
            "tags": SchemaNode(kind="list", items=text, list_type="set"),
            "plain": SchemaNode(kind="list", items=number),
            "parts": SchemaNode(kind="list", items=part, list_type="map", list_keys=("name", "port")),
            "whole": SchemaNode(kind="map", values=text, atomic=True),
            "open": SchemaNode(kind="any"),
        },
    )
    status = SchemaNode(kind="object", fields={"ready": number})
    meta = builtin_types().definition_node(OBJECT_META)
    return SchemaNode(
        kind="object", fields={"apiVersion": text, "kind": text, "metadata": meta, "spec": spec, "status": status}
    )


@pytest.fixture(scope="module")
def doors(plane: ControlPlane) -> dict[str, Door]:
    call(plane, "POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    crd = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.merge.koord.test"},
        "spec": {
            "group": "merge.koord.test",
            "scope": "Namespaced",
            "names": {"plural": "widgets", "singular": "widget", "kind": "Widget"},
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": WIDGET_SCHEMA},
                    "subresources": {"status": {}},
                }
            ],
        },
    }
    code, answer = call(plane, "POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd)
    assert code in (201, 409), answer
    kinds = [("v1", "ConfigMap", "configmaps"), ("v1", "Service", "services"), ("v1", "Pod", "pods")]
    kinds.append(("apps/v1", "Deployment", "deployments"))
    found: dict[str, Door] = {}
    for api_version, kind, plural in kinds:
        node = builtin_types().node_for(api_version.rpartition("/")[0], api_version.rpartition("/")[2], kind)
        assert node is not None
        found[kind] = Door(plane, api_version, kind, plural, node)
    found["Widget"] = Door(plane, "merge.koord.test/v1", "Widget", "widgets", widget_node())
    # The server publishes a new kind in its own time: asked this often, it has had tens of seconds.
    assert any(found["Widget"].call("GET", "")[0] == 200 for _ in range(5000)), "the widget kind was never served"
    return found


def settled(obj: Any) -> Any:
    """What a typed server keeps of a value: no nulls, nothing empty, no directives left in new items."""
    if isinstance(obj, dict):
        kept = {k: settled(v) for k, v in obj.items() if not k.startswith("$")}
        return {k: v for k, v in kept.items() if v not in (None, {}, [], "")}
    # A null among strings decodes to an empty string.
    return ["" if v is None else settled(v) for v in obj] if isinstance(obj, list) else obj


def content(obj: Obj) -> Obj:
    """An object without what the server counts and stamps."""
    metadata = {k: v for k, v in obj["metadata"].items() if k not in ("managedFields", "resourceVersion", "generation")}
    kept: Obj = settled({**obj, "metadata": metadata})
    return kept


# Fields that the server fills in when a write leaves them out; defaults are not part of merging.
DEFAULTED = frozenset(
    {
        *("dnsPolicy", "restartPolicy", "schedulerName", "terminationGracePeriodSeconds", "imagePullPolicy"),
        *("terminationMessagePath", "terminationMessagePolicy", "protocol", "targetPort", "port", "replicas"),
        *("strategy", "type", "rollingUpdate", "maxSurge", "maxUnavailable", "revisionHistoryLimit"),
        *("progressDeadlineSeconds", "sessionAffinity", "clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"),
        "internalTrafficPolicy",
    }
)


def filled(ours: Any, theirs: Any) -> Any:
    """Our value with the defaults that theirs has and it lacks."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        out = {k: filled(v, theirs.get(k)) for k, v in ours.items()}
        return out | {k: v for k, v in theirs.items() if k not in ours and k in DEFAULTED}
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        return [filled(a, b) for a, b in zip(ours, theirs)]
    return ours


def latest(obj: Obj) -> str:
    return max((e.get("time", "") for e in obj["metadata"].get("managedFields", [])), default="")


def pastless(entries: list[Obj]) -> list[Obj]:
    """Entries without the time of the past's: the real server reads its clock twice, and a second may pass between."""
    past = BEFORE_FIRST_APPLY
    return [{k: v for k, v in e.items() if k != "time" or e["manager"] != past} for e in entries]


class Seeded:
    """Random values from small pools, so that writes meet often."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)

    def pick(self, *choices: Any) -> Any:
        return self.chance.choice(choices)

    def some(self, pool: list[Any]) -> list[Any]:
        return self.chance.sample(pool, self.chance.randint(0, len(pool)))

    def strings(self, *, nulls: bool) -> dict[str, Any]:
        values = ["1", "2", "3", None] if nulls else ["1", "2", "3"]
        return {key: self.pick(*values) for key in self.some(["a", "b", "c"])}

    def metadata(self, *, nulls: bool) -> Obj:
        out: Obj = {}
        if self.pick(True, False):
            out["labels"] = self.strings(nulls=nulls)
        if self.pick(True, False, False):
            out["annotations"] = self.strings(nulls=nulls)
        return out

    def container(self, name: str, *, full: bool) -> Obj:
        out: Obj = {"name": name}
        if full or self.pick(True, False):
            out["image"] = self.pick("x", "y")
        if full:
            out |= {"imagePullPolicy": "Always", "terminationMessagePolicy": "File"}
            out["terminationMessagePath"] = "/dev/termination-log"
        if self.pick(True, False):
            out["env"] = [{"name": n, "value": self.pick("1", "2")} for n in self.some(["A", "B", "C"])]
        if self.pick(True, False):
            ports = [(80, "TCP"), (80, "UDP"), (443, "TCP")]
            out["ports"] = [{"containerPort": p, "protocol": q} for p, q in self.some(ports)]
        if self.pick(True, False, False):
            out["args"] = self.some(["1", "2", "3"])
        if self.pick(True, False, False):
            out["resources"] = {"limits": {r: self.pick("1", "2") for r in self.some(["cpu", "memory"])}}
        return out

    def deployment(self, *, full: bool, nulls: bool) -> Obj:
        names = self.some(["c", "d", "e"]) or ["c"]
        pod: Obj = {"containers": [self.container(n, full=full) for n in names]}
        if self.pick(True, False):
            pod["nodeSelector"] = self.strings(nulls=nulls)
        if self.pick(True, False):
            pod["tolerations"] = [{"key": k, "operator": "Exists"} for k in self.some(["a", "b"])]
        if self.pick(True, False):
            pod["volumes"] = [
                {"name": n, "emptyDir": {"medium": self.pick("Memory", "")}} for n in self.some(["v", "w"])
            ]
        spec: Obj = {"template": {"metadata": {"labels": {"app": "x", **self.strings(nulls=nulls)}}, "spec": pod}}
        if self.pick(True, False):
            spec["replicas"] = self.pick(1, 2, 3)
        if self.pick(True, False):
            spec["minReadySeconds"] = self.pick(1, 2)
        if full:
            spec["selector"] = {"matchLabels": {"app": "x"}}
        return {"metadata": self.metadata(nulls=nulls), "spec": spec}

    def configmap(self, *, full: bool, nulls: bool) -> Obj:
        out: Obj = {"metadata": self.metadata(nulls=nulls)}
        if full or self.pick(True, False):
            out["data"] = self.strings(nulls=nulls)
        if self.pick(True, False, False):
            out["binaryData"] = dict.fromkeys(self.some(["x", "y"]), "eA==")
        return out

    def service(self, *, full: bool, nulls: bool) -> Obj:
        choices = [(80, "TCP", "a"), (80, "UDP", "b"), (90, "TCP", "c")]
        ports = [
            {"port": port, "protocol": protocol, "name": name, "targetPort": self.pick(8080, "http")}
            for port, protocol, name in (self.some(choices) or choices[:1])
        ]
        out: Obj = {"metadata": self.metadata(nulls=nulls), "spec": {"ports": ports}}
        if self.pick(True, False):
            out["spec"]["selector"] = self.strings(nulls=nulls)
        return out

    def widget(self, *, full: bool, nulls: bool) -> Obj:
        spec: Obj = {}
        if self.pick(True, False):
            spec["size"] = self.pick(1, 2)
        if self.pick(True, False):
            spec["tags"] = self.some(["a", "b", "c"])
        if self.pick(True, False):
            spec["plain"] = self.some([1, 2, 3])
        if self.pick(True, False):
            choices = [("a", 80), ("a", 81), ("b", 80)]
            spec["parts"] = [{"name": n, "port": p, **self.part()} for n, p in self.some(choices)]
        if self.pick(True, False):
            spec["whole"] = self.strings(nulls=False)
        if self.pick(True, False):
            spec["open"] = self.pick(
                {"a": 1}, {"a": {"b": [1]}}, {"a": {"b": [1, 2], "c": "x"}}, {"d": "e"}, {"a": True}
            )
        return {"metadata": self.metadata(nulls=nulls), "spec": spec}

    def part(self) -> Obj:
        out: Obj = {}
        if self.pick(True, False):
            out["note"] = self.pick("x", "y")
        if self.pick(True, False):
            out["labels"] = self.strings(nulls=False)
        return out

    def json_patch(self, doc: Obj) -> list[Obj]:
        """Operations at places that are mostly there. Only text is moved about: anything else would not decode."""
        rooms = ("/data", "/spec", "/metadata/labels", "/metadata/annotations")
        places = [(path, value) for path, value in _places(doc) if path.startswith(rooms) and "IP" not in path]
        places = [(path, value) for path, value in places if "ipFamil" not in path]  # filled in by the store, unowned
        texts = [path for path, value in places if isinstance(value, str)]
        texts += ["/metadata/labels/z", "/metadata/annotations/q", "/data/a"]
        out: list[Obj] = []
        for _ in range(self.chance.randint(1, 2)):
            op = self.pick("add", "remove", "replace", "test", "move", "copy")
            path = self.pick(*texts)
            value: Any = self.pick("1", "2")
            if op in ("remove", "test") and places:
                path, value = self.pick(*places)
            if op == "test" and self.pick(True, False, False):
                value = self.pick("1", 1, None, {}, [])
            out.append({"op": op, "path": path, "from": self.pick(*texts), "value": value})
        return out

    def directed(self, body: Obj, doc: Obj) -> Obj:
        """A strategic merge patch with a directive or two in it."""
        out: Obj = json.loads(json.dumps(body))
        pod = out.get("spec", {}).get("template", {}).get("spec", {})
        # At most one mistake: the real server finds either of two first.
        mistake = self.pick("keyless", "merge", "order", *[""] * 9)
        for holder, key in ((pod, "containers"), (pod, "volumes"), (pod["containers"][0], "env") if pod else ({}, "")):
            self._direct(holder, key)
        if pod and mistake == "keyless":
            pod["containers"].append({"image": "x"})
        if pod and self.pick(True, False, False):
            out["spec"]["strategy"] = {"$retainKeys": ["type"], "type": "Recreate"}
        metadata = out["metadata"]
        if "labels" in metadata and self.pick(True, False, False):
            metadata["labels"]["$patch"] = "merge" if mistake == "merge" else self.pick("replace", "delete")
        if self.pick(True, False):
            metadata["finalizers"] = self.some(["x.test/a", "x.test/b", "x.test/c"])
        elif doc["metadata"].get("finalizers"):
            gone = self.some(doc["metadata"]["finalizers"])
            metadata["$deleteFromPrimitiveList/finalizers"] = gone
        if metadata.get("finalizers") and self.pick(True, False):
            order = ["x.test/d"] if mistake == "order" else [*metadata["finalizers"], "x.test/d"]
            metadata["$setElementOrder/finalizers"] = order
        return out

    def _direct(self, holder: Obj, key: str) -> None:
        items = holder.get(key)
        if not items:
            return
        match self.pick("none", "delete", "replace", "order"):
            case "delete":
                items[0] = {"name": items[0]["name"], "$patch": "delete"}
            case "replace":
                items.append({"$patch": "replace"})
            case "order":
                names = [item["name"] for item in items]
                holder[f"$setElementOrder/{key}"] = [{"name": name} for name in [*names, "c", "zz"]]


def _places(value: Any, path: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = [(path, value)] if path else []
    below = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in below:
        found += _places(item, f"{path}/{str(key).replace('~', '~0').replace('/', '~1')}")
    return found


class Checked:
    """One object on both sides: each write goes to the real server, and ours must come to the same."""

    def __init__(self, door: Door, live: Obj, seeded: Seeded) -> None:
        self.door = door
        self.live = live
        self.seeded = seeded
        self.name = live["metadata"]["name"]
        self.filter = ownable(door.group, door.kind)
        self.stored = 0
        self.refused = 0

    def patch(
        self,
        content_type: str,
        body: Any,
        manager: str,
        merge: Callable[[Obj], Obj | PatchFailed],
    ) -> None:
        ours = merge(self.live)
        code, answer = self.door.call("PATCH", f"/{self.name}", body, content_type, manager)
        if isinstance(ours, PatchFailed):
            self.same_refusal(ours, code, answer, body)
            return
        if code == 422:  # validation, which is not ours
            self.refused += 1
            return
        assert code == 200, answer
        assert filled(content(ours), content(answer)) == content(answer), body
        self.same_owners(answer, manager, body)

    def put(self, body: Obj, manager: str) -> None:
        code, answer = self.door.call("PUT", f"/{self.name}", body, JSON, manager)
        if code == 422:
            self.refused += 1
            return
        assert code == 200, answer
        self.same_owners(answer, manager, body)

    def same_owners(self, answer: Obj, manager: str, body: Any, sent: Any = None) -> None:
        expected = track_update(
            self.live,
            {**answer, "metadata": {**answer["metadata"], "managedFields": sent}},
            manager=manager,
            node=self.door.node,
            api_version=self.door.api_version,
            now=latest(answer),
            ownable=self.filter,
        )
        ours = {**answer, "metadata": {**answer["metadata"], "managedFields": expected}}
        assert _with_unchanged_times(self.live, ours) == answer["metadata"].get("managedFields", []), body
        self.live = answer
        self.stored += 1

    def apply(self, config: Obj, manager: str, *, force: bool) -> None:
        body = {"apiVersion": self.door.api_version, "kind": self.door.kind, **config}
        body["metadata"] = {**body["metadata"], "name": self.name}
        query = f"?fieldManager={manager}&force={str(force).lower()}"
        code, answer = self.door.call("PATCH", f"/{self.name}{query}", body, APPLY_PATCH)
        ours = apply_config(
            self.live,
            body,
            manager=manager,
            force=force,
            node=self.door.node,
            now=latest(answer) if code == 200 else "",
            api_version=self.door.api_version,
            kind=self.door.kind,
            ownable=self.filter,
        )
        if isinstance(ours, ApplyConflicts):
            self.same_refusal(ours.to_patch_failed(), code, answer, body)
            return
        if isinstance(ours, PatchFailed):
            self.same_refusal(ours, code, answer, body)
            return
        if code == 422:
            self.refused += 1
            return
        assert code == 200, answer
        self.same_applied(ours, answer, body)

    def same_applied(self, ours: ApplyResult, answer: Obj, body: Obj) -> None:
        assert filled(content(ours.obj), content(answer)) == content(answer), body
        expected = ours.obj["metadata"].get("managedFields", [])
        theirs = answer["metadata"].get("managedFields", [])
        assert pastless(expected) == pastless(theirs), body
        self.live = answer
        self.stored += 1

    def same_refusal(self, ours: PatchFailed, code: int, answer: Obj, body: Any) -> None:
        assert (ours.code, ours.message) == (code, answer["message"]), body
        theirs = answer.get("details")
        if theirs and "causes" in theirs:  # the real server leaves their order to chance
            theirs = {**theirs, "causes": sorted(theirs["causes"], key=str)}
        mine = ours.details
        if mine and "causes" in mine:
            mine = {**mine, "causes": sorted(mine["causes"], key=str)}
        assert (ours.reason, mine) == (answer.get("reason", ""), theirs), body
        self.refused += 1

    def edit_managers(self) -> None:
        """An update that sends managedFields of its own: some dropped, all reset, or something unreadable."""
        held = self.live["metadata"].get("managedFields", [])
        edits: list[Any] = [self.seeded.some(held), held, [{}], [], [{"manager": "bad"}], [*held, *held]]
        edits.append([{**entry, "time": "2026-01-01T01:30:00.5+01:00"} for entry in held])
        edits.append([{**entry, "fieldsV1": {"f:metadata": {"f:labels": {"f:a": {".": {}}}}}} for entry in held])
        sent = self.seeded.pick(*edits)
        metadata = {**self.live["metadata"], "managedFields": sent, "labels": self.seeded.strings(nulls=False)}
        body = {**self.live, "metadata": metadata}
        code, answer = self.door.call("PUT", f"/{self.name}", body, JSON, "editor")
        assert code == 200, answer
        self.same_owners(answer, "editor", sent, sent=sent)

    def write(self, make: Callable[..., Obj]) -> None:
        """One random write of a random kind by a random manager."""
        seeded = self.seeded
        manager = seeded.pick("one", "two", "three")
        kind = seeded.pick(
            "json", "json", "merge", "merge", "strategic", "strategic", "apply", "apply", "apply", "put", "edit"
        )
        if kind == "strategic" and not self.door.builtin:
            kind = "merge"
        if kind == "json":
            operations = seeded.json_patch(self.live)
            self.patch(JSON_PATCH, operations, manager, lambda live: json_patch(live, operations))
        elif kind == "merge":
            body = make(full=self.door.kind != "ConfigMap", nulls=True)
            self.patch(MERGE_PATCH, body, manager, lambda live: merge_patch(live, body))
        elif kind == "strategic":
            body = seeded.directed(make(full=seeded.pick(True, False), nulls=True), self.live)
            self.patch(STRATEGIC_PATCH, body, manager, lambda live: strategic_merge(live, body, self.door.node))
        elif kind == "edit":
            self.edit_managers()
        elif kind == "apply":
            self.apply(make(full=True, nulls=False), manager, force=seeded.pick(True, False))
        else:
            changed = merge_patch(self.live, make(full=True, nulls=True))
            assert isinstance(changed, dict)
            self.put(changed, manager)


@pytest.mark.parametrize(
    ("kind", "writes"), [("ConfigMap", 50), ("Deployment", 60), ("Service", 30), ("Widget", 60)], ids=str
)
def test_random_writes_end_in_the_same_object_with_the_same_owners(
    doors: dict[str, Door], kind: str, writes: int
) -> None:
    seeded = Seeded(sum(kind.encode()))
    make = getattr(seeded, kind.lower())
    door = doors[kind]
    for round_ in range(3):
        body = {**make(full=True, nulls=False), "apiVersion": door.api_version, "kind": kind}
        # An object that nobody owns anything of is not tracked at all; one label keeps it in the game.
        body["metadata"] = {"labels": {"a": "1"}, **body["metadata"], "name": f"{kind.lower()}-{round_}"}
        made = door.create(body, "creator")
        checked = Checked(door, made, seeded)
        first = track_update(
            None,
            {**made, "metadata": {k: v for k, v in made["metadata"].items() if k != "managedFields"}},
            manager="creator",
            node=door.node,
            api_version=door.api_version,
            now=latest(made),
            ownable=checked.filter,
        )
        if kind != "Service":  # its addresses are given out after ownership is worked out
            assert first == made["metadata"].get("managedFields", [])
        for _ in range(writes // 3):
            checked.write(make)
        assert checked.stored > writes // 9, "most writes were refused: the test says little"


def strategic(checked: Checked, body: Obj, manager: str, subresource: str) -> Obj:
    """A strategic merge patch through a side door, with the owners that we expect of it."""
    door = checked.door
    code, answer = door.call("PATCH", f"/{checked.name}/{subresource}", body, STRATEGIC_PATCH, manager)
    assert code == 200, answer
    after = door.call("GET", f"/{checked.name}")[1]
    expected = track_update(
        checked.live,
        after,
        manager=manager,
        node=door.node,
        api_version=door.api_version,
        now=latest(after),
        subresource=subresource,
        ownable=ownable(door.group, door.kind, subresource),
    )
    assert expected == after["metadata"]["managedFields"]
    checked.live = after
    return after


def test_side_doors_own_what_they_can_change(doors: dict[str, Door]) -> None:
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}
    pod = doors["Pod"].create({"metadata": {"name": "sides"}, "spec": {"containers": [container]}}, "creator")
    checked = Checked(doors["Pod"], pod, Seeded(1))
    resized = {"name": "c", "resources": {"requests": {"cpu": "2"}}}
    strategic(checked, {"spec": {"containers": [resized]}}, "sizer", "resize")
    debug = {"ephemeralContainers": [{"name": "e", "image": "i"}]}
    strategic(checked, {"spec": debug}, "debugger", "ephemeralcontainers")
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    strategic(checked, {"metadata": {"labels": {"q": "1"}}, "status": status}, "kubelet", "status")
    found = strategic(checked, {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}, "other", "status")
    assert [e["manager"] for e in found["metadata"]["managedFields"]][-1] != "creator"


def test_scale_writes_an_entry_without_time(doors: dict[str, Door]) -> None:
    door = doors["Deployment"]
    body = {**Seeded(3).deployment(full=True, nulls=False)}
    body["metadata"] = {"name": "scaled"}
    checked = Checked(door, door.create(body, "creator"), Seeded(1))
    replicas = checked.live["spec"]["replicas"] + 1
    code, _ = door.call("PATCH", "/scaled/scale", {"spec": {"replicas": replicas}}, MERGE_PATCH, "scaler")
    assert code == 200
    after = door.call("GET", "/scaled")[1]
    expected = track_update(
        checked.live,
        after,
        manager="scaler",
        node=door.node,
        api_version=door.api_version,
        now=None,
        subresource="scale",
    )
    assert expected == after["metadata"]["managedFields"]


def test_more_than_ten_updaters_share_an_entry(doors: dict[str, Door]) -> None:
    door = doors["ConfigMap"]
    checked = Checked(door, door.create({"metadata": {"name": "capped"}, "data": {"k0": "1"}}, "m0"), Seeded(1))
    for i in range(1, 14):
        body = {"data": {f"k{i}": "1"}}
        checked.patch(MERGE_PATCH, body, f"m{i}", lambda live, body=body: merge_patch(live, body))  # type: ignore[misc]
    assert checked.stored == 13
    assert "ancient-changes" in [e["manager"] for e in checked.live["metadata"]["managedFields"]]


def test_applying_what_is_not_there_creates_it(doors: dict[str, Door]) -> None:
    for kind in ("ConfigMap", "Deployment", "Widget"):
        door, seeded = doors[kind], Seeded(7)
        config = getattr(seeded, kind.lower())(full=True, nulls=False)
        body = {"apiVersion": door.api_version, "kind": kind, **config, "metadata": {"name": "applied"}}
        code, answer = door.call("PATCH", "/applied?fieldManager=m", body, APPLY_PATCH)
        assert code == 201, answer
        ours = apply_config(
            None,
            body,
            manager="m",
            force=False,
            node=door.node,
            now=latest(answer),
            api_version=door.api_version,
            kind=kind,
            ownable=ownable(door.group, kind),
        )
        assert isinstance(ours, ApplyResult)
        assert ours.obj["metadata"].get("managedFields", []) == answer["metadata"].get("managedFields", [])


def test_kubectl_takes_over_from_client_side_apply(doors: dict[str, Door]) -> None:
    door = doors["ConfigMap"]
    last = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "moved"}, "data": {"a": "1", "b": "1"}}
    annotations = {"kubectl.kubernetes.io/last-applied-configuration": json.dumps(last)}
    body = {**last, "metadata": {"name": "moved", "annotations": annotations}, "data": {"a": "1", "b": "2"}}
    checked = Checked(door, door.create(body, "kubectl-client-side-apply"), Seeded(1))
    for data, manager in (({"a": "3"}, "other"), ({"a": "3", "b": "3"}, "kubectl"), ({"a": "3"}, "kubectl")):
        checked.apply({"metadata": {}, "data": data}, manager, force=False)
    assert (checked.refused, checked.stored) == (2, 1)
    assert checked.live["data"] == {"a": "3", "b": "2"}


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"bogus": 1}, id="unknown-field"),
        pytest.param({"replicas": "x"}, id="string-for-number"),
        pytest.param({"paused": "x"}, id="string-for-boolean"),
        pytest.param({"template": {"spec": {"containers": [{"name": "c", "image": 5}]}}}, id="number-for-string"),
        pytest.param({"template": {"spec": {"containers": [{"name": "c", "args": "x"}]}}}, id="string-for-list"),
        pytest.param({"template": {"spec": {"containers": [{"name": "c"}, {"name": "c"}]}}}, id="double-key"),
        pytest.param({"template": {"spec": {"containers": ["x"]}}}, id="string-for-item"),
        pytest.param({"template": {"spec": {"containers": [None]}}}, id="null-for-item"),
        pytest.param({"template": {"spec": {"nodeSelector": {"a": {"b": 1}}}}}, id="map-for-string"),
        pytest.param({"template": []}, id="list-for-map"),
    ],
)
def test_configurations_of_the_wrong_shape_are_refused_in_the_same_words(doors: dict[str, Door], change: Obj) -> None:
    door = doors["Deployment"]
    body = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "shapeless"}, "spec": change}
    code, answer = door.call("PATCH", "/shapeless?fieldManager=m", body, APPLY_PATCH)
    ours = apply_config(
        None, body, manager="m", force=False, node=door.node, now="", api_version="apps/v1", kind="Deployment"
    )
    assert isinstance(ours, PatchFailed)
    assert (ours.code, ours.message) == (code, answer["message"])


def _with_unchanged_times(old: Obj, new: Obj) -> list[Obj]:
    """Return the old managedFields when only times differ and nothing else changed, else the new ones."""
    before = old["metadata"].get("managedFields") or []
    after = new["metadata"].get("managedFields") or []
    untimed = [[{k: v for k, v in entry.items() if k != "time"} for entry in side] for side in (before, after)]
    if not before or untimed[0] != untimed[1]:
        return after
    return before if equal_values(without_managed_fields(old), without_managed_fields(new), UNTYPED) else after
