"""The manager's webhooks under load: the API server calls them, the manager dies, and its certificate is replaced.

Policies are those that `koord manifests` and the chart have: a pod passes while nobody answers.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from pathlib import Path
from typing import Any

from koord.api.koordinator.custom_kinds import CLUSTER_COLOCATION_PROFILES, NODE_METRICS
from koord.api.koordinator.protocol import NAMESPACE
from koord.api.kubernetes.builtin_kinds import (
    CONFIG_MAPS,
    MUTATING_WEBHOOK_CONFIGURATIONS,
    PRIORITY_CLASSES,
    SECRETS,
    VALIDATING_WEBHOOK_CONFIGURATIONS,
)
from koord.cli.manifests.manifests import manifests
from koord.manager.webhook_server.cert_rotator import SECRET_NAME
from koord.telemetry.clock import WallClock, now
from koord.values import timestamp
from tests import cluster_rules
from tests.real.chaos import workload
from tests.real.chaos.patient_client import PatientClient

Json = dict[str, Any]
WEBHOOK = "mpod-create.koordinator.sh"
_KINDS = {
    one.kind: one
    for one in (PRIORITY_CLASSES, CONFIG_MAPS, MUTATING_WEBHOOK_CONFIGURATIONS, VALIDATING_WEBHOOK_CONFIGURATIONS)
}
PROFILE: Json = {
    "metadata": {"name": "chaos"},
    "spec": {
        "selector": {"matchLabels": workload.PROFILED},
        "qosClass": "BE",
        "priorityClassName": "koord-batch",
        "labels": {workload.MUTATED: "yes"},
    },
}


class Admission:
    def __init__(self, client: PatientClient, port: int) -> None:
        self._client = client
        self.port = port
        self.handshakes = 0
        self.certificates: set[bytes] = set()
        self.mutated: set[str] = set()
        self.passed_over: set[str] = set()
        self._admitted: set[str] = set()

    async def prepare(self) -> None:
        made = manifests(components=("settings", "manager"))
        assert isinstance(made, list), made
        for one in made:
            if (kind := _KINDS.get(one["kind"])) is not None:
                await self._client.create(kind, one, one["metadata"].get("namespace", ""))
        await self._client.create(CLUSTER_COLOCATION_PROFILES, PROFILE)

    async def report_usage(self) -> None:
        """Report what koordlet would, so that the manager lends batch resources."""
        usage = {"resources": {"cpu": "500m", "memory": "1Gi"}}
        report = {
            "updateTime": timestamp.text(now(WallClock())),
            "nodeMetric": {"nodeUsage": usage, "systemUsage": usage},
            "podsMetric": [],
        }
        for metric in await self._client.listed(NODE_METRICS):
            await self._client.merge(NODE_METRICS, metric["metadata"]["name"], {"status": report}, subresource="status")

    async def rotate(self) -> None:
        """Delete the certificate, of which the manager makes another with an authority of its own."""
        await self._client.patiently(lambda: self._client.plain.delete(SECRETS, SECRET_NAME, NAMESPACE))

    async def look(self) -> list[str]:
        """Return what is wrong with the certificate. What is served now was trusted before and stays so for long."""
        served = await asyncio.to_thread(_served_certificate, self.port)
        if served is None:
            return []
        self.handshakes += 1
        self.certificates.add(served)
        configurations = []
        for kind in (MUTATING_WEBHOOK_CONFIGURATIONS, VALIDATING_WEBHOOK_CONFIGURATIONS):
            configurations += await self._client.listed(kind)
        return cluster_rules.untrusted_certificate(served, configurations)

    def judge(self, pods: list[Json], added: list[Json]) -> list[str]:
        """Return what is wrong with the pods that a living webhook has seen, and with calls that failed.

        `added` are the audit events since the last time.
        """
        self._admitted |= cluster_rules.admitted_by(added, WEBHOOK)
        profiled = [pod for pod in pods if workload.PROFILED.items() <= pod["metadata"]["labels"].items()]
        names = {f"{pod['metadata']['namespace']}/{pod['metadata']['name']}": pod for pod in profiled}
        self.mutated |= {name for name, pod in names.items() if workload.MUTATED in pod["metadata"]["labels"]}
        self.passed_over |= names.keys() - self.mutated
        return [
            *cluster_rules.not_mutated(profiled, self._admitted, workload.PROFILED, workload.MUTATED),
            *(f"a caller was told of a failed call: {text}" for text in self._client.webhook_failures),
        ]


class AuditReader:
    """Reads what was added to an audit log since it was read last, and keeps all of it in `events`."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._at = 0
        self.events: list[Json] = []

    def read(self) -> list[Json]:
        """Return what was added."""
        known = len(self.events)
        with self._log.open("rb") as file:
            file.seek(self._at)
            whole = file.read().rpartition(b"\n")[0]
        for line in whole.splitlines():
            try:
                self.events.append(json.loads(line))
            except json.JSONDecodeError:
                continue  # a server that was killed left it unfinished: no event
        self._at += len(whole) + 1 if whole else 0
        return self.events[known:]


def _served_certificate(port: int) -> bytes | None:
    """Return the certificate at the port (DER); None while nobody listens or nothing is served yet."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as plain, context.wrap_socket(plain) as secured:
            return secured.getpeercert(binary_form=True)
    except OSError:
        return None
