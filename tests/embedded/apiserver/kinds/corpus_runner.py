"""This module sends every request of the corpus to a server and keeps the answers in a comparable form.

Uids, times, revisions and allocated addresses are the server's own and are left out; so is what admission
adds to pods.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator
from itertools import islice
from typing import Any

from koord.embedded.apiserver.rest.request_context import AdmissionAttributes
from tests.embedded.apiserver.kinds.corpus import (
    NOT_STORED,
    SCHEMA_ONLY,
    UNDAMAGED,
    Obj,
    collection,
    damaged,
    delta,
    varied,
    with_namespace,
)

# (method, path, query, body) -> (status, body)
SendRequest = Callable[[str, str, dict[str, str], Any], Awaitable[tuple[int, Any]]]
Answers = dict[str, dict[str, Any]]
PANIC = "the server broke off the connection"
NODE_PORTS = range(30_000, 33_000)
DRY_RUN = {"dryRun": "All"}
_UID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
# What was sent as an empty list is nothing here, and quoted as such.
_EMPTY = re.compile(r'(": ?|value: )(\[\]|\{\})')
_ADDRESS = re.compile(r"10\.\d+\.\d+\.\d+$")
_OWN_METADATA = ("uid", "resourceVersion", "creationTimestamp", "managedFields", "selfLink", "namespace", "name")
_ADMITTED_KEYS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


class PodAdmissionStandIn:
    """This stand-in does what those admission plugins do whose work shows in the messages of rejected pod updates."""

    async def admit(self, attributes: AdmissionAttributes) -> None:
        obj = attributes.obj
        if obj is None or obj["kind"] != "Pod":
            return
        spec = obj["spec"]
        spec.setdefault("priority", 0)
        spec.setdefault("preemptionPolicy", "PreemptLowerPriority")
        listed = spec.setdefault("tolerations", [])
        for key in _ADMITTED_KEYS:
            if all(t.get("key") not in (None, key) for t in listed):
                listed.append({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300})


async def collect_answers(ask: SendRequest, id: str, obj: Obj, ns: str) -> Answers:
    """Return the answers by the id of the damage: `create`, and `update` of the existing object."""
    place = with_namespace(collection(obj), ns)
    name = with_namespace(obj["metadata"]["name"], ns)
    answers: Answers = {"create": {}, "update": {}}
    for damage, body in _request_bodies(id, obj):
        answers["create"][damage] = _comparable(await ask("POST", place, DRY_RUN, with_namespace(body, ns)), ns)
    if id in NOT_STORED:
        return _as_differences(answers)
    status, made = await ask("POST", place, {}, with_namespace(obj, ns))
    if status != 201:
        raise RuntimeError(f"cannot create {place}/{name}: {made}")
    try:
        for damage, body in _request_bodies(id, with_namespace(obj, ns), made):
            answers["update"][damage] = _comparable(await ask("PUT", f"{place}/{name}", DRY_RUN, body), ns)
    finally:
        await ask("DELETE", f"{place}/{name}", {}, {"gracePeriodSeconds": 0})
    return _as_differences(answers)


def _request_bodies(id: str, obj: Obj, onto: Obj | None = None) -> Iterator[tuple[str, Obj]]:
    yield from islice(damaged(obj, onto), 1 if id in SCHEMA_ONLY else None)
    yield from varied(id, obj if onto is None else onto)


def _comparable(answer: tuple[int, Any], ns: str) -> Any:
    status, body = answer
    body = _without_server_values(body, ns)
    if status >= 400:
        causes = body.get("details", {}).get("causes")
        if body.get("reason") == "Invalid" and causes:
            return {"code": status, "causes": [[c.get("reason"), c.get("field"), c["message"]] for c in causes]}
        return {"code": status, "message": body.get("message")}
    body["metadata"] = {k: v for k, v in body["metadata"].items() if k not in _OWN_METADATA}
    body["metadata"].pop("finalizers", None)
    if body["kind"] == "Pod":
        _without_admission(body["spec"])
    return {"code": status, "body": body}


def _without_admission(spec: Obj) -> None:
    spec.pop("priority", None)
    spec.pop("preemptionPolicy", None)
    own = [t for t in spec.get("tolerations", ()) if t.get("key") not in _ADMITTED_KEYS]
    spec["tolerations"] = own
    if not own:
        del spec["tolerations"]


def _without_server_values(value: Any, ns: str, key: str = "") -> Any:
    if isinstance(value, dict):
        return {_UID.sub("<uid>", k).replace(ns, "{ns}"): _without_server_values(v, ns, k) for k, v in value.items()}
    if isinstance(value, list):
        return [_without_server_values(v, ns, key) for v in value]
    if key == "nodePort" and isinstance(value, int) and value in NODE_PORTS:
        return NODE_PORTS[0]
    if isinstance(value, str):
        if key in ("lastTransitionTime", "lastPhaseTransitionTime"):
            return "<time>"
        if key in ("clusterIP", "clusterIPs"):
            return _ADDRESS.sub("<address>", value)
        return _UID.sub("<uid>", _EMPTY.sub(r"\1null", value)).replace(ns, "{ns}")
    return value


def _as_differences(answers: Answers) -> Answers:
    """Replace accepted bodies by their difference from the undamaged one, which keeps the record small."""
    for said in answers.values():
        whole = said.get(UNDAMAGED, {}).get("body")
        if whole is None:
            continue
        for id, answer in said.items():
            if id != UNDAMAGED and "body" in answer:
                answer["delta"] = delta(whole, answer.pop("body"))
    return answers
