"""A real control plane with RBAC on which koord is installed from `koord manifests`, and what its audit log says."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from koord.cli.manifests.manifests import manifests
from koord.kube.client.typed_client import Client
from koord.manager.reconcile_loop import NAMESPACE
from tests.real.kubectl import kubectl
from tools import assets, controlplane
from tools.controlplane import ControlPlane, free_port

GATES = (
    "NodeMutatingWebhook=true,NodeValidatingWebhook=true,ConfigMapValidatingWebhook=true,"
    "ReservationMutatingWebhook=true,MultiQuotaTree=true,ColocationProfileController=true"
)
PATIENCE_S = 90  # other files run at the same time
POLICY = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": [{"level": "Metadata"}]}


class InstalledPlane:
    def __init__(self, plane: ControlPlane, folder: Path, audit: Path) -> None:
        self.plane = plane
        self.folder = folder
        self.audit = audit
        self.port = free_port()
        self.kubeconfig = Path()

    def apply(self, objects: list[dict[str, Any]], *args: str) -> str:
        text = yaml.safe_dump_all(objects)
        said = kubectl(
            self.plane.kubeconfig, "apply", "--server-side", "--force-conflicts", *args, "-f", "-", stdin=text
        )
        assert said.code == 0, said.err
        return said.out

    def requests(self, account: str = "koord-manager") -> list[dict[str, Any]]:
        user = f"system:serviceaccount:{NAMESPACE}:{account}"
        events = [json.loads(line) for line in self.audit.read_text().splitlines()]
        return [event for event in events if event["user"]["username"] == user and "responseStatus" in event]

    def denied(self, account: str = "koord-manager") -> list[str]:
        return [
            f"{event['verb']} {event['requestURI']}"
            for event in self.requests(account)
            if event["responseStatus"]["code"] in (401, 403)
        ]


def objects(*components: str, failure_policy: str = "Fail") -> list[dict[str, Any]]:
    made = manifests(components=components, feature_gates=GATES)
    assert isinstance(made, list)
    for one in made:
        for webhook in one.get("webhooks", ()):
            webhook["failurePolicy"] = failure_policy
    return made


@contextmanager
def bare_plane(folder: Path) -> Iterator[InstalledPlane]:
    """Run a control plane with RBAC and an audit log, on which nothing is installed."""
    missing = [name for name in ("etcd", "kube-apiserver") if not (assets.folder() / name).is_file()]
    if missing:
        pytest.skip(f"no {' or '.join(missing)} built: run `python -m tools.assets` first")
    policy, audit = folder / "policy.json", folder / "audit.log"
    policy.write_text(json.dumps(POLICY))
    args = ["--audit-policy-file", str(policy), "--audit-log-path", str(audit), "--audit-log-mode", "blocking-strict"]
    with controlplane.running(args, authorization="RBAC") as plane:
        yield InstalledPlane(plane, folder, audit)


@contextmanager
def installed_plane(folder: Path) -> Iterator[InstalledPlane]:
    """Run the same with the namespace and the CRDs installed."""
    with bare_plane(folder) as installed:
        installed.apply(objects("namespace", "crds"))
        kubectl(installed.plane.kubeconfig, "wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
        yield installed


async def until(client: Client, done: Callable[[], Any]) -> Any:
    """What `done` comes to, once it is something."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        found = await done()
        if found:
            return found
        assert time.monotonic() < deadline, f"did not happen within {PATIENCE_S} s"
        await asyncio.sleep(0.05)


def pod(name: str, **labels: str) -> dict[str, Any]:
    resources = {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "1", "memory": "1Gi"}}
    spec = {"containers": [{"name": "c", "image": "i", "resources": resources}]}
    return {"metadata": {"name": name, "labels": labels}, "spec": spec}


@contextmanager
def program(module: str, kubeconfig: Path, config: Path, *flags: str) -> Iterator[None]:
    command = [sys.executable, "-m", module, f"--config={config}", *flags]
    with config.with_suffix(".log").open("wb") as log:
        env = {**os.environ, "KUBECONFIG": str(kubeconfig)}
        process = subprocess.Popen(command, env=env, stdout=log, stderr=subprocess.STDOUT)
    try:
        yield
    finally:
        process.terminate()
        process.wait(timeout=30)
