"""Freeze what a real API server says about its built-in kinds, so that tests can compare with it offline.

Run against a server when the supported Kubernetes version changes, with `kubectl proxy` listening:
`python -m tests.api.kubernetes.freeze http://localhost:8001`
"""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from koord.api.kubernetes.builtin_kinds import BUILTIN_KINDS

HERE = Path(__file__).parent
DEFINITIONS = HERE / "definitions.json.gz"
DISCOVERY = HERE / "discovery.json"

# Scalars of the wire that OpenAPI describes as objects or strings of their own.
SCALARS = {
    "io.k8s.apimachinery.pkg.api.resource.Quantity": "quantity",
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": "int-or-string",
    "io.k8s.apimachinery.pkg.apis.meta.v1.Time": "time",
    "io.k8s.apimachinery.pkg.apis.meta.v1.MicroTime": "time",
    "io.k8s.apimachinery.pkg.runtime.RawExtension": "any",
}
# Bodies of requests: reachable from no stored kind, but modelled.
EXTRA_ROOTS = (
    "io.k8s.api.policy.v1.Eviction",
    "io.k8s.api.authentication.v1.UserInfo",
    "io.k8s.apimachinery.pkg.apis.meta.v1.Status",
)


def compact(schema: dict[str, Any]) -> str:
    """One property as text: a scalar's name, `[T` for a list, `{T` for a map, `@name` for another definition."""
    if "$ref" in schema:
        name = schema["$ref"].removeprefix("#/definitions/")
        return SCALARS.get(name, f"@{name}")
    kind = schema.get("type", "any")
    if kind == "array":
        return "[" + compact(schema["items"])
    if kind == "object" and "additionalProperties" in schema:
        return "{" + compact(schema["additionalProperties"])
    return str(kind)


def reachable(definitions: dict[str, Any], roots: list[str]) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    queue = list(roots)
    while queue:
        name = queue.pop()
        if name in found:
            continue
        found[name] = {field: compact(schema) for field, schema in definitions[name].get("properties", {}).items()}
        queue += [text.partition("@")[2] for text in found[name].values() if "@" in text]
    return found


def kinds(definitions: dict[str, Any], discovery: list[dict[str, Any]]) -> dict[str, str]:
    """Definition names by "group/version/kind"."""
    listed = {(row["group"], row["version"], row["kind"]) for row in discovery}
    return {
        "{group}/{version}/{kind}".format(**gvk): name
        for name, schema in definitions.items()
        for gvk in schema.get("x-kubernetes-group-version-kind", ())
        if (gvk["group"], gvk["version"], gvk["kind"]) in listed
    }


def read_discovery(server: str) -> list[dict[str, Any]]:
    """The server's rows for the kinds that the built-in table claims to know."""
    wanted = {(r.group_version_path, r.group, r.version) for r in BUILTIN_KINDS}
    claimed = {(r.group, r.version, r.kind) for r in BUILTIN_KINDS}
    rows = []
    for root, group, version in sorted(wanted):
        listed = _get(server, root)["resources"]
        names = {r["name"] for r in listed}
        rows += [
            {
                "group": group,
                "version": version,
                "kind": r["kind"],
                "plural": r["name"],
                "singular": r["singularName"],
                "namespaced": r["namespaced"],
                "shortNames": r.get("shortNames", []),
                "status": f"{r['name']}/status" in names,
            }
            for r in listed
            if "/" not in r["name"] and (group, version, r["kind"]) in claimed
        ]
    return rows


def _get(server: str, path: str) -> Any:
    with urlopen(server + path) as answer:
        return json.load(answer)


def main(server: str) -> None:
    discovery = read_discovery(server)
    definitions = _get(server, "/openapi/v2")["definitions"]
    by_kind = kinds(definitions, discovery)
    frozen = {
        "version": _get(server, "/version")["gitVersion"],
        "kinds": by_kind,
        "definitions": reachable(definitions, [*by_kind.values(), *EXTRA_ROOTS]),
    }
    text = json.dumps(frozen, sort_keys=True, separators=(",", ":")).encode()
    DEFINITIONS.write_bytes(gzip.compress(text, 9, mtime=0))
    DISCOVERY.write_text("[\n" + ",\n".join(json.dumps(row, sort_keys=True) for row in discovery) + "\n]\n")


if __name__ == "__main__":
    main(sys.argv[1])
