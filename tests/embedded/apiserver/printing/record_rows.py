"""This program asks a real server for the tables of many objects and keeps its answers in rows.json.gz.

Run from the repository's root: python -m tests.embedded.apiserver.printing.record_rows KUBECONFIG
"""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import re
import secrets
import ssl
import sys
import time
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.embedded.apiserver.printing.kind_cases import cases
from tests.embedded.apiserver.printing.pod_cases import DYING_PODS, pods

Obj = dict[str, Any]
ROWS = Path(__file__).with_name("rows.json.gz")
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
AGO = re.compile(r"^-(\d+)s(\.?)$")
# Kinds of which the server has objects of its own.
OF_THE_SERVER = (
    "/apis/apiregistration.k8s.io/v1/apiservices",
    "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas",
    "/apis/flowcontrol.apiserver.k8s.io/v1/prioritylevelconfigurations",
    "/apis/networking.k8s.io/v1/ipaddresses",
    "/apis/networking.k8s.io/v1/servicecidrs",
    "/apis/scheduling.k8s.io/v1/priorityclasses",
    "/api/v1/componentstatuses",
)


def filled(value: Any, ns: str, now: float) -> Any:
    if isinstance(value, dict):
        return {filled(k, ns, now): filled(v, ns, now) for k, v in value.items()}
    if isinstance(value, list):
        return [filled(v, ns, now) for v in value]
    if isinstance(value, str):
        ago = AGO.match(value)
        if ago:
            stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now - int(ago[1])))
            return f"{stamp}.000000Z" if ago[2] else f"{stamp}Z"
        return value.replace("{ns}", ns)
    return value


def signing_requests(ns: str) -> list[tuple[Obj, Obj]]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "me")])
    pem = x509.CertificateSigningRequestBuilder().subject_name(name).sign(key, hashes.SHA256())
    request = base64.b64encode(pem.public_bytes(serialization.Encoding.PEM)).decode()
    spec = {"request": request, "signerName": "example.com/s", "usages": ["client auth"]}
    states: dict[str, Obj] = {
        "pending": {},
        "approved": {"conditions": [{"type": "Approved", "status": "True", "reason": "r"}]},
        "denied": {"conditions": [{"type": "Denied", "status": "True", "reason": "r"}]},
        "failed": {
            "conditions": [
                {"type": "Approved", "status": "True", "reason": "r"},
                {"type": "Failed", "status": "True", "reason": "r"},
            ]
        },
    }
    made = []
    for state, status in states.items():
        extra = {"expirationSeconds": 90000} if state == "approved" else {}
        csr = {
            "apiVersion": "certificates.k8s.io/v1",
            "kind": "CertificateSigningRequest",
            "metadata": {"name": f"{ns}-{state}"},
            "spec": {**spec, **extra},
        }
        made.append((csr, status))
    return made


class Server:
    def __init__(self, kubeconfig: str) -> None:
        config = yaml.safe_load(Path(kubeconfig).read_text())
        self._url = config["clusters"][0]["cluster"]["server"]
        self._token = config["users"][0]["user"]["token"]
        self._ssl = ssl.create_default_context()
        self._ssl.check_hostname = False
        self._ssl.verify_mode = ssl.CERT_NONE
        self._plurals: dict[tuple[str, str], tuple[str, bool]] = {}

    async def __aenter__(self) -> Server:
        headers = {"Authorization": f"Bearer {self._token}"}
        self._session = aiohttp.ClientSession(headers=headers, connector=aiohttp.TCPConnector(ssl=self._ssl))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def send(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers.setdefault("Content-Type", "application/json")
        async with self._session.request(method, self._url + path, data=data, headers=headers) as answer:
            found = await answer.json(content_type=None)
            if answer.status >= 400:
                raise RuntimeError(f"{method} {path}: {found}")
            return found

    async def path_of(self, obj: Obj, ns: str) -> str:
        group = obj["apiVersion"]
        root = f"/apis/{group}" if "/" in group else f"/api/{group}"
        if (group, obj["kind"]) not in self._plurals:
            for row in (await self.send("GET", root))["resources"]:
                if "/" not in row["name"]:
                    self._plurals[group, row["kind"]] = (row["name"], row["namespaced"])
        plural, namespaced = self._plurals[group, obj["kind"]]
        return f"{root}/namespaces/{ns}/{plural}" if namespaced else f"{root}/{plural}"


def flat(path: str) -> str:
    """Return the path without its namespace, which is what a row belongs to."""
    return re.sub(r"/namespaces/[^/]+(?=/)", "", path)


async def make(server: Server, ns: str, made: list[str]) -> None:
    """Create everything, and append the paths of the objects to `made`."""
    now = time.time()
    whole = [*pods(), *signing_requests(ns)]
    whole += [({k: v for k, v in case.items() if k != "status"}, case.get("status") or {}) for case in cases()]
    for raw, raw_status in whole:
        obj, status = filled(raw, ns, now), filled(raw_status, ns, now)
        path = await server.path_of(obj, ns)
        one = f"{path}/{obj['metadata']['name']}"
        await server.send("POST", path, obj)
        made.append(one)
        if status:
            part = "approval" if obj["kind"] == "CertificateSigningRequest" else "status"
            await server.send(
                "PATCH", f"{one}/{part}", {"status": status}, **{"Content-Type": "application/merge-patch+json"}
            )
        if obj["metadata"]["name"] in DYING_PODS or "dying" in obj["metadata"]["name"]:
            await server.send("DELETE", one)


async def row(server: Server, path: str) -> Obj:
    """Return one object, its cells and the time at which they were made, away from the turn of a second."""
    part = time.time() % 1
    if not 0.2 < part < 0.7:
        await asyncio.sleep((1.25 - part) % 1)
    now = time.time()
    table = await server.send("GET", f"{path}?includeObject=Object", Accept=TABLE)
    columns = [[c["name"], c["type"], c["format"], c["priority"]] for c in table["columnDefinitions"]]
    found = table["rows"][0]
    found["object"]["metadata"].pop("managedFields", None)
    place, _, _ = flat(path).rpartition("/")
    return {"path": place, "at": now, "columns": columns, "cells": found["cells"], "object": found["object"]}


async def main(kubeconfig: str) -> None:
    ns = f"rows-{secrets.token_hex(3)}"
    async with Server(kubeconfig) as server:
        await server.send("POST", "/api/v1/namespaces", {"metadata": {"name": ns}})
        made: list[str] = []
        try:
            await make(server, ns, made)
            await freeze(server, made)
        finally:
            await clear(server, made, ns)


async def freeze(server: Server, made: list[str]) -> None:
    extra = []
    for path in OF_THE_SERVER:
        items = (await server.send("GET", path))["items"]
        extra += [f"{path}/{item['metadata']['name']}" for item in items][:4]
    events = [path.replace("/api/v1/", "/apis/events.k8s.io/v1/") for path in made if "/events/" in path]
    # Version 1 of an autoscaler knows one metric; the real server hides the others in an annotation, this one does not.
    scalers = [path.replace("/v2/", "/v1/") for path in made if path.endswith("/horizontalpodautoscalers/silent")]
    rows = [await row(server, path) for path in (*made, *extra, *events, *scalers)]
    ROWS.write_bytes(gzip.compress(json.dumps(rows, indent=0).encode(), mtime=0))
    sys.stdout.write(f"{len(rows)} rows\n")


async def clear(server: Server, made: list[str], ns: str) -> None:
    free = {"metadata": {"finalizers": None}}
    for path in made:
        try:
            await server.send("PATCH", path, free, **{"Content-Type": "application/merge-patch+json"})
            await server.send("DELETE", path)
        except RuntimeError as gone:
            if "NotFound" not in str(gone):
                raise
    await server.send("DELETE", f"/api/v1/namespaces/{ns}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
