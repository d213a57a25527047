"""A leader that is stopped (SIGSTOP) past its lease writes nothing more when it goes on: a real process with a real
lease, over TLS.
"""

from __future__ import annotations

import asyncio
import importlib.util
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml

from koord.api.kubernetes.builtin_kinds import CONFIG_MAPS, LEASES
from koord.embedded.apiserver import data_directory
from koord.embedded.apiserver.http_server import kubeconfig_document
from koord.embedded.apiserver.rest.request_context import AdmissionChain
from koord.embedded.apiserver.server import ApiServer, builtin_catalog
from koord.embedded.cluster import InProcessTransport
from koord.kube.client.typed_client import Client
from koord.kube.leader_election import LeaderElector, LeaseConfig
from koord.kube.transport.api_error import unwrap
from koord.telemetry.clock import WallClock
from tests.embedded.apiserver.https_harness import serve_https
from tests.kube.controller.writing_program import DURATION_S, LEASE, NAMESPACE, RENEW_DEADLINE_S, RETRY_S

ROOT = Path(__file__).resolve().parents[3]


class Home:
    """An API server over HTTPS, and a client that does not go over its sockets."""

    def __init__(self, server: ApiServer, kubeconfig: Path) -> None:
        self.kubeconfig = kubeconfig
        self.client = Client(InProcessTransport(server, "tester"), burst=0)

    async def start_writer(self, name: str, loop: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.kube.controller.writing_program", str(self.kubeconfig), name, loop, cwd=ROOT
        )

    async def versions(self, prefix: str) -> list[int]:
        found = unwrap(await self.client.list(CONFIG_MAPS, NAMESPACE))
        return [int(o.metadata.resource_version) for o in found.items if o.metadata.name.startswith(prefix)]


@pytest.fixture
async def home(tmp_path: Path) -> AsyncIterator[Home]:
    server = ApiServer(catalog=builtin_catalog(), tokens={"secret": "tester"}, admission=AdmissionChain())
    async with serve_https(server, identity=data_directory.create_certificates()) as address:
        kubeconfig = tmp_path / "kubeconfig"
        kubeconfig.write_text(yaml.safe_dump(kubeconfig_document(address)))
        yield Home(server, kubeconfig)


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
async def test_a_leader_that_was_stopped_past_its_lease_writes_nothing_more(home: Home, loop: str) -> None:
    if importlib.util.find_spec(loop) is None:
        pytest.skip(f"{loop} is not installed")
    for turn in range(2):
        name = f"writer-{turn}"
        writer = await home.start_writer(name, loop)
        try:
            async with asyncio.timeout(60):
                while len(await home.versions(name)) < 100:
                    assert writer.returncode is None
                    await asyncio.sleep(0.05)
            assert unwrap(await home.client.get(LEASES, LEASE, NAMESPACE)).spec.holder_identity == name
            writer.send_signal(signal.SIGSTOP)
            taken_at = await lease_taken_by_another(home.client)
            writer.send_signal(signal.SIGCONT)
            async with asyncio.timeout(30):
                assert await writer.wait() == 1  # the lease is lost, and so the process ends
        finally:
            if writer.returncode is None:
                writer.kill()
                await writer.wait()
        late = [version for version in await home.versions(name) if version > taken_at]
        assert not late, f"{len(late)} writes by one that no longer led"


async def lease_taken_by_another(client: Client) -> int:
    """Return the resource version at which a rival took the lease; it gives the lease back afterwards."""
    taken: list[int] = []

    async def look() -> None:
        found = unwrap(await client.get(LEASES, LEASE, NAMESPACE))
        taken.append(int(found.metadata.resource_version))

    config = LeaseConfig(
        name=LEASE,
        namespace=NAMESPACE,
        identity="rival",
        duration_s=DURATION_S,
        renew_deadline_s=RENEW_DEADLINE_S,
        retry_s=RETRY_S,
    )
    async with asyncio.timeout(60):
        assert await LeaderElector(client, WallClock(), config, on_started=look).run() == "finished"
    return taken[0]
