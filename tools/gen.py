"""Regenerate what is derived: field and protobuf tables of built-in kinds and, from the API types, the CRD manifests.

Starts a real control plane, asks it what it serves, reads the matching Go sources, and writes data files whose bytes
depend on those inputs alone.
"""

from __future__ import annotations

import gzip
import importlib.util
import json
import subprocess
import urllib.request
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from tools import controlplane, gen_fields, gen_protobuf

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "src/koord/embedded/apiserver/schema/builtin.json.gz"
MESSAGES = ROOT / "src/koord/embedded/apiserver/protobuf/messages.json.gz"
CRDS = ROOT / "config/crds"
GO_MODULE = ROOT / "assets/kubernetes"
AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"


def ask(plane: controlplane.ControlPlane, path: str, accept: str = "application/json") -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {plane.token}", "Accept": accept}
    request = urllib.request.Request(plane.url + path, headers=headers)
    with urllib.request.urlopen(request, context=plane.ssl(), timeout=30) as answer:
        body: dict[str, Any] = json.load(answer)
        return body


def read_schemas(plane: controlplane.ControlPlane) -> tuple[dict[str, Any], list[str]]:
    """Every definition (v3 knows defaults, v2 has a few types that v3 leaves out) and the group versions."""
    schemas: dict[str, Any] = dict(ask(plane, "/openapi/v2")["definitions"])
    versions = sorted(p for p in ask(plane, "/openapi/v3")["paths"] if p == "api/v1" or p.count("/") == 2)
    versions = [p for p in versions if p.startswith(("api/", "apis/"))]
    for path in versions:
        schemas.update(ask(plane, f"/openapi/v3/{path}")["components"]["schemas"])
    return schemas, versions


def module_folders(modules: Iterable[str]) -> dict[str, str]:
    """Where the Go modules lie, in the versions that the control plane is built from."""
    listed = subprocess.run(
        ["go", "list", "-mod=readonly", "-m", "-f", "{{.Path}} {{.Dir}}", *sorted(modules)],
        cwd=GO_MODULE,
        check=True,
        capture_output=True,
        text=True,
    )
    return dict(line.split(" ", 1) for line in listed.stdout.splitlines())


def read_sources(packages: set[str]) -> gen_fields.GoSource:
    """The Go files of the packages."""
    folders = module_folders({"/".join(p.split("/")[:2]) for p in packages})
    texts: dict[str, dict[str, str]] = {}
    for package in sorted(packages):
        module = "/".join(package.split("/")[:2])
        folder = Path(folders[module], package.removeprefix(module).lstrip("/"))
        texts[package] = {
            file.name: file.read_text()
            for file in sorted(folder.glob("*.go"))
            if not file.name.endswith("_test.go") and not file.name.startswith(("zz_generated", "generated."))
        }
    return gen_fields.GoSource(texts)


def write_packed(path: Path, table: dict[str, Any]) -> None:
    text = json.dumps(table, separators=(",", ":"), ensure_ascii=True).encode()
    path.write_bytes(gzip.compress(text, compresslevel=9, mtime=0))


def write_table() -> None:
    with controlplane.running() as plane:
        schemas, versions = read_schemas(plane)
        discovery = [g for root in ("/api", "/apis") for g in ask(plane, root, AGGREGATED)["items"]]
        lists = {path: ask(plane, f"/{path}") for path in versions}
        release = ask(plane, "/version")["gitVersion"]
    source = read_sources({gen_fields.package_of(name) for name in schemas})
    table = {
        "release": release,
        "resources": gen_fields.resources(discovery, lists),
        "definitions": gen_fields.definitions(schemas, source),
    }
    write_packed(TABLE, table)
    print(f"{TABLE.relative_to(ROOT)}: {len(table['definitions'])} types, {len(table['resources'])} resources")


def write_messages() -> None:
    """The protobuf form of every type in the field table."""
    sources = []
    for folder in module_folders(gen_protobuf.MODULES).values():
        for proto in sorted(Path(folder).rglob("generated.proto")):
            go = [file.read_text() for file in sorted(proto.parent.glob("*.go")) if file.name != "generated.pb.go"]
            sources.append(gen_protobuf.Source(proto.read_text(), go))
    table = gen_protobuf.messages(sources, json.loads(gzip.decompress(TABLE.read_bytes()))["definitions"])
    write_packed(MESSAGES, table)
    print(f"{MESSAGES.relative_to(ROOT)}: {len(table)} messages")


def write_crds() -> None:
    if importlib.util.find_spec("koord.api.schema") is None:
        print("no koord.api.schema: CRD manifests left alone")
        return
    from koord.api.schema import crd_manifests

    CRDS.mkdir(parents=True, exist_ok=True)
    written = set()
    for manifest in crd_manifests():
        path = CRDS / f"{manifest['metadata']['name']}.yaml"
        path.write_text(yaml.safe_dump(manifest, sort_keys=False, width=120))
        written.add(path)
    for stale in set(CRDS.glob("*.yaml")) - written:
        stale.unlink()
    print(f"{CRDS.relative_to(ROOT)}: {len(written)} manifests")


def main() -> None:
    write_table()
    write_messages()
    write_crds()


if __name__ == "__main__":
    main()
