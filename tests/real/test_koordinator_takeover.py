"""koord's manager, scheduler and descheduler take over a cluster on which Koordinator runs, and give it back.

Koordinator is what its chart 1.8 installs and what its programs wrote; its leaders are leases that this test renews.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from datetime import UTC, datetime
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
import yaml

from koord.api.koordinator.custom_kinds import CUSTOM_KINDS
from koord.api.kubernetes.builtin_kinds import LEASES, NODES, PODS, SECRETS
from koord.api.kubernetes.resource import Resource
from koord.cli.commands.migrate_from_koordinator.command import gather_facts
from koord.cli.commands.migrate_from_koordinator.report import make_report
from koord.kube.client.typed_client import Client
from koord.kube.transport.api_error import unwrap
from tests import koordinator_installation as koordinator
from tests.koordinator_installation import NAMESPACE
from tests.real import koordinator_state as state
from tests.real.installed_plane import InstalledPlane, bare_plane, objects, program, until
from tests.real.kubectl import kubectl
from tests.real.manager_process import ManagerProcess, account, running
from tests.real.reach import connect
from tools.controlplane import free_port

pytestmark = pytest.mark.real

Obj = dict[str, Any]

PROGRAMS = tuple(koordinator.LEASES)
RENEW_S = 1.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InstalledPlane]:
    with bare_plane(tmp_path_factory.mktemp("takeover")) as plane:
        yield plane


def resource_of(obj: Obj) -> Resource[Any]:
    return next(one for one in CUSTOM_KINDS if (one.api_version, one.kind) == (obj["apiVersion"], obj["kind"]))


async def install_koordinator(cluster: InstalledPlane, client: Client) -> bytes:
    """Make everything that Koordinator has in a cluster, and return the authority of its webhooks."""
    made = [one for one in koordinator.koordinator_objects() if "WebhookConfiguration" not in one["kind"]]
    cluster.apply(made)
    kubectl(cluster.plane.kubeconfig, "wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
    unwrap(await client.create(NODES, state.node()))
    unwrap(await client.patch(NODES, state.NODE, state.node_status(), kind="merge", subresource="status"))
    for one in state.bound_pods():
        unwrap(await client.create(PODS, one, state.SPACE))
        status = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
        name = one["metadata"]["name"]
        unwrap(await client.patch(PODS, name, status, state.SPACE, kind="merge", subresource="status"))
    for one in state.custom_objects():
        resource, name, space = resource_of(one), one["metadata"]["name"], one["metadata"].get("namespace")
        unwrap(await client.create(resource, {key: value for key, value in one.items() if key != "status"}, space))
        if "status" in one:
            written = {"status": one["status"]}
            unwrap(await client.patch(resource, name, written, space, kind="merge", subresource="status"))
    secret, authority = koordinator.certificate_secret()
    # Nothing answers at the Service here: configurations come last, so that no pod waits for them.
    cluster.apply([secret, *koordinator.webhook_configurations(authority)])
    return authority


async def versions_of(client: Client, *resources: Resource[Any]) -> dict[str, str]:
    """Return what each object is at: another number after another write."""
    found = {}
    for resource in resources:
        for one in unwrap(await client.list(resource)).items:
            meta = one.metadata
            found[f"{resource.kind} {meta.namespace}/{meta.name} {meta.uid}"] = meta.resource_version
    return found


async def holders(client: Client) -> dict[str, str]:
    leases = unwrap(await client.list(LEASES, NAMESPACE)).items
    return {one.metadata.name: one.spec.holder_identity or "" for one in leases}


class Leaders:
    """The leaders of Koordinator: they renew their leases until they are told to give them back."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.names = {lease: f"{name}-6d5f_0c1e" for name, lease in koordinator.LEASES.items()}

    async def acquire(self) -> None:
        for name in PROGRAMS:
            lease = koordinator.lease(name, self.names[koordinator.LEASES[name]], datetime.now(UTC))
            unwrap(await self._client.create(LEASES, lease, NAMESPACE))

    async def renew(self) -> None:
        while True:
            await self._write(lambda lease: {"holderIdentity": self.names[lease]})
            await asyncio.sleep(RENEW_S)  # the period of renewal

    async def release(self) -> None:
        await self._write(lambda _: {"holderIdentity": "", "leaseDurationSeconds": 1})

    async def _write(self, spec: Any) -> None:
        moment = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        for lease in self.names:
            patch = {"spec": {"renewTime": moment, **spec(lease)}}
            unwrap(await self._client.patch(LEASES, lease, patch, NAMESPACE, kind="merge"))


@asynccontextmanager
async def renewing(leaders: Leaders) -> AsyncIterator[None]:
    task = asyncio.create_task(leaders.renew())
    try:
        yield
        assert not task.done(), "renewing failed"
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def start_programs(stack: ExitStack, cluster: InstalledPlane, folder: Path) -> ManagerProcess:
    """Start koord's programs with the objects of `koord manifests`, each with the rights of its own account."""
    made = objects("manager", "scheduler", "descheduler", failure_policy="Ignore")
    for webhook in (each for one in made for each in one.get("webhooks", ())):
        webhook["timeoutSeconds"] = 1  # nothing answers at the Service's address here
    cluster.apply(made)
    for name in PROGRAMS[1:]:
        (data,) = [one["data"] for one in made if one["metadata"]["name"] == f"{name}-config"]
        config = yaml.safe_load(data[f"{name}.config"])
        flags = ["--secure-port=0"]
        if name == "koord-scheduler":
            flags += [f"--port={free_port()}", "--address=127.0.0.1"]
        else:
            address = f"127.0.0.1:{free_port()}"
            config |= {"healthzBindAddress": address, "metricsBindAddress": address}
        file = folder / f"{name}.config"
        file.write_text(yaml.safe_dump(config))
        kubeconfig = account(cluster.plane, folder, name, NAMESPACE)
        stack.enter_context(program(f"koord.cli.daemons.{name.replace('-', '_')}", kubeconfig, file, *flags))
    kubeconfig = account(cluster.plane, folder, "koord-manager", NAMESPACE)
    return stack.enter_context(running(kubeconfig, folder))


def lease_reads(cluster: InstalledPlane, name: str) -> int:
    events = cluster.requests(name)
    return sum(event.get("objectRef", {}).get("resource") == "leases" and event["verb"] == "get" for event in events)


def webhook_health(port: int, authority: bytes) -> int:
    """Ask as an API server does: by the Service's name, trusting the authority of the configurations alone."""
    context = ssl.create_default_context(cadata=authority.decode())
    connection = HTTPConnection("127.0.0.1", port, timeout=10)
    connection.connect()
    connection.sock = context.wrap_socket(connection.sock, server_hostname=koordinator.DNS_NAME)
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().status
    finally:
        connection.close()


async def test_koord_takes_over_without_a_changed_pod_and_gives_back(cluster: InstalledPlane, tmp_path: Path) -> None:
    async with connect(cluster.plane.kubeconfig) as client:
        authority = await install_koordinator(cluster, client)
        leaders = Leaders(client)
        await leaders.acquire()
        report = make_report(await gather_facts(client), "1.2.3")
        assert [one.what for one in report.findings if one.severity in ("error", "unknown")] == []
        assert {one.lease: one.holder for one in report.leases} == leaders.names
        assert report.values == {"koordlet": {"hostDirs": {"predictionCheckpointDir": koordinator.PREDICTIONS}}}
        pods = await versions_of(client, PODS)
        finished = await versions_of(client, *(one for one in CUSTOM_KINDS if one.kind == "PodMigrationJob"))
        secret = unwrap(await client.get(SECRETS, "koordinator-webhook-certs", NAMESPACE)).data

        with ExitStack() as programs:
            async with renewing(leaders):
                manager = start_programs(programs, cluster, tmp_path)

                async def all_waited() -> bool:
                    return all(lease_reads(cluster, name) >= 2 for name in PROGRAMS)

                await until(client, all_waited)
                assert await holders(client) == leaders.names, "koord leads while Koordinator does"
            await leaders.release()

            async def koord_leads() -> bool:
                found = await holders(client)
                return all(found[lease] not in ("", leaders.names[lease]) for lease in leaders.names)

            await until(client, koord_leads)
            await work_on_what_was_there(client)
            after = await versions_of(client, PODS)
            assert pods.items() <= after.items(), "a pod of Koordinator was written"
            assert webhook_health(manager.webhook_port, authority) == 200, "another certificate is served"

        assert await holders(client) == dict.fromkeys(leaders.names, ""), "koord did not give its leases back"
        for name in PROGRAMS:
            assert cluster.denied(name) == []
        await give_back(cluster, client, leaders, authority)
        assert pods.items() <= (await versions_of(client, PODS)).items()
        kinds = (one for one in CUSTOM_KINDS if one.kind == "PodMigrationJob")
        assert await versions_of(client, *kinds) == finished
        assert unwrap(await client.get(SECRETS, "koordinator-webhook-certs", NAMESPACE)).data == secret


async def work_on_what_was_there(client: Client) -> None:
    """koord's programs count what Koordinator's gave out: of the GPU 40 are left, and of 8 CPUs 2 beside a service of 2
    and a Reservation of 4.
    """
    for name, amounts in (
        ("gpu-fits", state.gpu_share(40)),
        ("gpu-does-not", state.gpu_share(60)),
        ("cpu-does-not", {"cpu": "3"}),
    ):
        made = state.pod(name, amounts, "koord-prod")
        unwrap(await client.create(PODS, made, state.SPACE))

    async def judged() -> bool:
        found = {one.metadata.name: one for one in unwrap(await client.list(PODS, state.SPACE)).items}
        refused = [
            any(each.type == "PodScheduled" and each.status == "False" for each in found[name].status.conditions)
            for name in ("gpu-does-not", "cpu-does-not")
        ]
        return found["gpu-fits"].spec.node_name == state.NODE and all(refused)

    await until(client, judged)
    fits = unwrap(await client.get(PODS, "gpu-fits", state.SPACE))
    (given,) = json.loads(fits.metadata.annotations["scheduling.koordinator.sh/device-allocated"])["gpu"]
    assert given["minor"] == 0

    async def lends() -> bool:
        """koord-manager wrote what the node lends by Koordinator's NodeMetric: less than was there."""
        batch = unwrap(await client.get(NODES, state.NODE)).status.allocatable.get("kubernetes.io/batch-cpu")
        return batch is not None and str(batch) != "5k"

    await until(client, lends)


async def give_back(cluster: InstalledPlane, client: Client, leaders: Leaders, authority: bytes) -> None:
    """Koordinator's chart and leaders come back, and its definitions accept all that koord wrote."""
    moment = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    for lease, holder in leaders.names.items():
        patch = {"spec": {"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": moment}}
        unwrap(await client.patch(LEASES, lease, patch, NAMESPACE, kind="merge"))
    cluster.apply([*koordinator.koordinator_objects(), *koordinator.webhook_configurations(authority)])
    listed = ",".join(f"{one.plural}.{one.group}" for one in CUSTOM_KINDS)
    stored = kubectl(cluster.plane.kubeconfig, "get", listed, "--all-namespaces", "-o", "json")
    assert stored.code == 0, stored.err
    strict = kubectl(
        cluster.plane.kubeconfig,
        *("replace", "--dry-run=server", "--validate=strict", "-f", "-"),
        stdin=stored.out,
    )
    assert strict.code == 0, strict.err
    assert len(strict.out.splitlines()) >= len(state.custom_objects())
