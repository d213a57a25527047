"""Two replicas of koord-manager asked as an API server asks: 200 pods a second over TLS, trusting only what the webhook
configuration says at that moment, while the certificate and its authority are replaced.

Connections are kept and renewed every few seconds, so that both old and new ones meet the new certificate.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import signal
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from bench.apiserver import _cpu_s, _rss_mb, _target
from bench.http_load_generator import Target, read_answer
from bench.manager import NAMESPACE, create, server
from koord.api.config import gates
from koord.api.config.gates import MANAGER_GATES
from koord.cli.daemons.lifecycle import event_loop_factory
from koord.cli.manifests.cluster_objects import priority_classes, webhook_configurations
from tools.controlplane import free_port

RATE = 200
SECONDS = 45
ROTATE_AT_S = 8
LANES = 4  # connections to each replica
RENEW_S = 3.0
BUNDLE_S = 1.0  # how old an API server's view of the configuration may be
HOST = f"koordinator-webhook-service.{NAMESPACE}.svc"
CONFIGURATION = (
    "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/koordinator-mutating-webhook-configuration"
)
SECRET = f"/api/v1/namespaces/{NAMESPACE}/secrets/koordinator-webhook-certs"
PROFILE: dict[str, Any] = {
    "apiVersion": "config.koordinator.sh/v1alpha1",
    "kind": "ClusterColocationProfile",
    "metadata": {"name": "batch"},
    "spec": {"selector": {"matchLabels": {"app": "job"}}, "qosClass": "BE", "priorityClassName": "koord-batch"},
}


def review(number: int) -> bytes:
    """Every other pod is one of the profile's."""
    amounts = {"cpu": "1", "memory": "2Gi"}
    containers = [
        {"name": f"c{i}", "image": "example/app:1", "resources": {"requests": amounts, "limits": amounts}}
        for i in range(2)
    ]
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "job-", "namespace": "default", "labels": {"app": "job" if number % 2 else "web"}},
        "spec": {"containers": containers, "schedulerName": "default-scheduler"},
    }
    request = {
        "uid": f"u{number}",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "namespace": "default",
        "operation": "CREATE",
        "userInfo": {"username": "bench"},
        "object": pod,
    }
    plain = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    body = msgspec.json.encode(plain)
    path = "/mutate-pod" if number % 4 < 2 else "/validate-pod"
    head = f"POST {path}?timeout=10s HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def own_pod(name: str) -> dict[str, Any]:
    labels = {"koord-app": "koord-manager"}
    return {"metadata": {"name": name, "labels": labels}, "spec": {"containers": [{"name": "manager", "image": "x"}]}}


class Replica:
    def __init__(self, kubeconfig: Path, folder: Path, name: str) -> None:
        self.port, self._health = free_port(), free_port()
        self.log = folder / f"{name}.log"
        command = [sys.executable, "-m", "koord.cli.daemons.koord_manager", "--metrics-addr=0"]
        command.append(f"--health-probe-addr=127.0.0.1:{self._health}")
        environ = {**os.environ, "KUBECONFIG": str(kubeconfig), "POD_NAMESPACE": NAMESPACE, "POD_NAME": name}
        environ |= {"WEBHOOK_PORT": str(self.port), "WEBHOOK_CERT_DIR": str(folder / f"{name}-certs")}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, env=environ, stdout=log, stderr=subprocess.STDOUT)

    async def ready(self) -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and self.process.poll() is None:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                reader, writer = await asyncio.open_connection("127.0.0.1", self._health)
                writer.write(b"GET /readyz HTTP/1.1\r\nHost: a\r\n\r\n")
                status, _ = await read_answer(reader)
                writer.close()
                if status == 200:
                    return
            await asyncio.sleep(0.2)
        raise RuntimeError(f"koord-manager is not ready:\n{self.log.read_text()[-2000:]}")

    def served(self) -> int:
        """How many certificates it has served so far."""
        return self.log.read_text().count("serving the certificate")


@contextlib.contextmanager
def replicas(kubeconfig: Path, folder: Path) -> Iterator[list[Replica]]:
    made = [Replica(kubeconfig, folder, f"koord-manager-{i}") for i in range(2)]
    try:
        yield made
    finally:
        for one in made:
            one.process.send_signal(signal.SIGTERM)
        for one in made:
            one.process.wait(timeout=30)


class Caller:
    """An API server's part: trust from the configuration, connections, calls."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self.trust: ssl.SSLContext | None = None
        self.trusting = asyncio.Event()
        self.bundles: list[bytes] = []
        self.latencies: list[float] = []
        self.failures: list[str] = []

    async def follow(self) -> None:
        reader, writer = await self._target.connect()
        while True:
            writer.write(self._target.request("GET", CONFIGURATION))
            _, body = await read_answer(reader)
            bundle = base64.b64decode(json.loads(body)["webhooks"][0]["clientConfig"]["caBundle"])
            if not self.bundles or bundle != self.bundles[-1]:
                self.bundles.append(bundle)
                self.trust = ssl.create_default_context(cadata=bundle.decode())
                self.trusting.set()
            await asyncio.sleep(BUNDLE_S)

    async def lane(self, replica: Replica, offset: int, lanes: int, started: float) -> None:
        """Calls at fixed moments, whatever the ones before took: waiting counts as latency."""
        opened, trust, writer = -RENEW_S, None, None
        reader: asyncio.StreamReader | None = None
        for number in range(offset, RATE * SECONDS, lanes):
            due = started + number / RATE
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            try:
                if writer is None or trust is not self.trust or time.perf_counter() - opened > RENEW_S:
                    if writer is not None:
                        writer.close()
                    trust, opened = self.trust, time.perf_counter()
                    reader, writer = await asyncio.open_connection(
                        "127.0.0.1", replica.port, ssl=trust, server_hostname=HOST
                    )
                    due = max(due, time.perf_counter())  # API servers open connections now and then, not per call
                assert reader is not None
                writer.write(review(number))
                status, body = await read_answer(reader)
                self.latencies.append(time.perf_counter() - due)
                if status != 200 or not json.loads(body)["response"]["allowed"]:
                    self.failures.append(f"{status} {body[:200]!r}")
            except (OSError, ssl.SSLError, asyncio.IncompleteReadError) as error:
                self.failures.append(repr(error))
                writer = None


async def measure() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as place, server(Path(place)) as kubeconfig:
        target = _target(kubeconfig)
        await create(target, "/api/v1/namespaces", [{"metadata": {"name": NAMESPACE}}])
        await create(target, "/apis/scheduling.k8s.io/v1/priorityclasses", priority_classes())
        await create(target, "/apis/config.koordinator.sh/v1alpha1/clustercolocationprofiles", [PROFILE])
        for made in webhook_configurations(NAMESPACE, gates.default_feature_gates(MANAGER_GATES)):
            await create(target, f"/apis/admissionregistration.k8s.io/v1/{made['kind'].lower()}s", [made])
        pods = f"/api/v1/namespaces/{NAMESPACE}/pods"  # replicas know of each other by their pods
        await create(target, pods, [own_pod(f"koord-manager-{i}") for i in range(2)])
        with replicas(kubeconfig, Path(place)) as both:
            for one in both:
                await one.ready()
            caller = Caller(target)
            follower = asyncio.create_task(caller.follow())
            await caller.trusting.wait()
            cpu = sum(_cpu_s(one.process.pid) for one in both)
            own, started = time.process_time(), time.perf_counter()
            lanes = [
                caller.lane(one, offset, 2 * LANES, started)
                for offset, one in enumerate(replica for replica in both for _ in range(LANES))
            ]

            async def rotate() -> None:
                await asyncio.sleep(ROTATE_AT_S)
                reader, writer = await target.connect()
                writer.write(target.request("DELETE", SECRET))
                await read_answer(reader)
                writer.close()

            await asyncio.gather(*lanes, rotate())
            took = time.perf_counter() - started
            follower.cancel()
            cpu = sum(_cpu_s(one.process.pid) for one in both) - cpu
            latencies = sorted(caller.latencies)
            return {
                "calls": len(latencies),
                "per_second": len(latencies) / took,
                "failed": len(caller.failures),
                "failures": caller.failures[:3],
                "p50_ms": 1000 * latencies[len(latencies) // 2],
                "p99_ms": 1000 * latencies[len(latencies) * 99 // 100],
                "p999_ms": 1000 * latencies[len(latencies) * 999 // 1000],
                "certificates_served": [one.served() for one in both],
                "trust_changes": len(caller.bundles) - 1,
                "driver_cpu_share": (time.process_time() - own) / took,
                "cpu_share": cpu / took,
                "cpu_ms_per_call": 1000 * cpu / len(latencies),
                "rss_mb": [_rss_mb(one.process.pid) for one in both],
            }


def run() -> dict[str, Any]:
    """Every round is kept: on a busy machine they differ tenfold, and one alone proves nothing."""
    rounds = []
    for _ in range(int(os.environ.get("KOORD_BENCH_ROUNDS", "3"))):
        with asyncio.Runner(
            loop_factory=event_loop_factory()
        ) as runner:  # the driver's own TLS is not what is measured
            rounds.append(runner.run(measure()))
    return {
        "cores": os.cpu_count(),
        "load_average": os.getloadavg()[0],
        "failed": sum(one["failed"] for one in rounds),
        "p50_ms": statistics.median(one["p50_ms"] for one in rounds),
        "p99_ms": statistics.median(one["p99_ms"] for one in rounds),
        "rounds": rounds,
    }
