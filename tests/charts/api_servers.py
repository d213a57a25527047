"""This module gives tests of the chart an API server: the embedded one as `koord up` serves it, or a real one."""

from __future__ import annotations

import contextlib
import json
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.koord_up_process import koord_up
from tools import assets, controlplane

Obj = dict[str, Any]

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_WAIT_S = 30.0


class ApiRefused(Exception):
    """The server refused a request; the text is its answer."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass
class ApiServer:
    url: str
    token: str
    context: ssl.SSLContext
    kubeconfig: Path

    def request(self, method: str, path: str, body: Obj | None = None, content_type: str = "application/json") -> Obj:
        request = urllib.request.Request(
            self.url + path,
            data=None if body is None else json.dumps(body).encode(),
            method=method,
            headers={"Authorization": f"Bearer {self.token}", "Content-Type": content_type},
        )
        try:
            with urllib.request.urlopen(request, context=self.context, timeout=30) as answer:
                found: Obj = json.loads(answer.read())
                return found
        except urllib.error.HTTPError as refused:
            raise ApiRefused(refused.code, f"{method} {path}: {refused.read().decode()}") from None

    def exists(self, path: str) -> bool:
        try:
            self.request("GET", path)
        except ApiRefused as refused:
            if refused.code != 404:
                raise
            return False
        return True

    def merge(self, path: str, body: Obj) -> Obj:
        return self.request("PATCH", path, body, "application/merge-patch+json")

    def collection(self, obj: Obj) -> str:
        """Return the path at which objects of this kind are created."""
        version = obj["apiVersion"]
        base = f"/apis/{version}" if "/" in version else f"/api/{version}"
        (found,) = [
            one
            for one in self.request("GET", base)["resources"]
            if one["kind"] == obj["kind"] and "/" not in one["name"]
        ]
        place = f"/namespaces/{obj['metadata']['namespace']}" if found["namespaced"] else ""
        return f"{base}{place}/{found['name']}"

    def wait_until_served(self, path: str) -> None:
        """Wait for a kind that was just defined: there is nothing at first, and then no storage of it."""
        until = time.monotonic() + _WAIT_S
        while True:
            try:
                if self.exists(path):
                    return
            except ApiRefused as refused:
                if refused.code != 429:
                    raise
            if time.monotonic() > until:
                raise TimeoutError(f"{path} is not served")
            time.sleep(0.05)

    def delete_definitions(self) -> None:
        """Delete every CustomResourceDefinition, and wait until they are gone."""
        for one in self.request("GET", CRDS)["items"]:
            self.request("DELETE", f"{CRDS}/{one['metadata']['name']}")
        until = time.monotonic() + _WAIT_S
        while self.request("GET", CRDS)["items"]:
            if time.monotonic() > until:
                raise TimeoutError("definitions do not go")
            time.sleep(0.05)


@contextlib.contextmanager
def embedded_server() -> Iterator[ApiServer]:
    """Yield the server of `koord up`, without the kinds that it brings along."""
    with koord_up("--nodes", "0", "--components", "workloads") as running:
        server = ApiServer(running.url, running.token, running.ssl(), running.kubeconfig)
        server.delete_definitions()
        yield server


@contextlib.contextmanager
def real_server() -> Iterator[ApiServer]:
    missing = [name for name in ("etcd", "kube-apiserver") if not (assets.folder() / name).is_file()]
    if missing:
        pytest.skip(f"no {' or '.join(missing)} built: run `python -m tools.assets` first")
    with controlplane.running() as plane:
        yield ApiServer(plane.url, plane.token, plane.ssl(), plane.kubeconfig)


SERVERS = {"embedded": embedded_server, "real": real_server}
