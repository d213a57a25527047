"""Requests to a kubelet over real HTTPS: the token, the certificate, refusals and malformed answers."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import trustme
from aiohttp import web

from koord.api.kubernetes.node import DaemonEndpoint, Node, NodeAddress, NodeDaemonEndpoints, NodeStatus
from koord.koordlet.inputs.kubelet_client import KubeletClient, KubeletUnavailable, PodSourceSettings, RequestObserver
from koord.kube.config.connection import TokenAuth
from koord.telemetry.clock import WallClock
from tests.koordlet.inputs.fake_kubelet import pod

CONFIG = {
    "kubeletconfig": {
        "cpuManagerPolicy": "static",
        "cpuManagerPolicyOptions": {"full-pcpus-only": "true"},
        "reservedSystemCPUs": "0-1",
        "kubeReserved": {"cpu": "500m"},
        "logging": {"flushFrequency": 5000000000},
    }
}


class Server:
    def __init__(self) -> None:
        self.port = 0
        self.authority = trustme.CA()
        self.body: bytes = msgspec.json.encode({"items": [pod("a")]})
        self.asked: list[tuple[str, str]] = []

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append((request.path, request.headers.get("Authorization", "")))
        if request.headers.get("Authorization") != "Bearer secret":
            return web.Response(status=401, text="Unauthorized")
        if request.path == "/configz":
            return web.json_response(CONFIG)
        return web.Response(body=self.body, content_type="application/json")


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    made = Server()
    application = web.Application()
    application.router.add_get("/{path:.*}", made.answer)
    runner = web.AppRunner(application)
    await runner.setup()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    made.authority.issue_cert("127.0.0.1").configure_cert(context)
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    made.port = runner.addresses[0][1]
    yield made
    await runner.cleanup()


def node(port: int, kind: str = "InternalIP") -> Node:
    endpoints = NodeDaemonEndpoints(kubelet_endpoint=DaemonEndpoint(port=port))
    return Node(status=NodeStatus(addresses=(NodeAddress(type=kind, address="127.0.0.1"),), daemon_endpoints=endpoints))


def client(
    server: Server, folder: Path, *, token: str = "secret", ca: bytes | None = None, seen: RequestObserver | None = None
) -> KubeletClient:
    (folder / "token").write_text(token)
    stated = PodSourceSettings(token_file=str(folder / "token"))
    if ca is not None:
        (folder / "ca").write_bytes(ca)
        stated = msgspec.structs.replace(stated, ca_file=str(folder / "ca"))
    return KubeletClient(stated, WallClock(), lambda: node(server.port), on_request=seen)


async def test_without_a_file_the_agent_shows_itself_as_at_the_api_server(server: Server) -> None:
    kubelet = KubeletClient(PodSourceSettings(auth=TokenAuth(token="secret")), WallClock(), lambda: node(server.port))
    try:
        assert not isinstance(await kubelet.pods(), KubeletUnavailable)
    finally:
        await kubelet.close()


async def test_pods_and_configuration_with_a_token(server: Server, tmp_path: Path) -> None:
    seen: list[tuple[str, int]] = []
    kubelet = client(server, tmp_path, seen=lambda path, code, seconds: seen.append((path, code)))
    pods = await kubelet.pods()
    assert not isinstance(pods, KubeletUnavailable), pods
    assert msgspec.json.decode(pods[0])["metadata"]["name"] == "a"
    config = await kubelet.configuration()
    assert not isinstance(config, KubeletUnavailable), config
    assert (config.cpu_manager_policy, config.reserved_system_cpus) == ("static", "0-1")
    assert config.topology_manager_scope == "container", "what is not said is the kubelet's default"
    assert kubelet.server == f"https://127.0.0.1:{server.port}"
    assert seen == [("/pods/", 200), ("/configz", 200)]
    await kubelet.close()


async def test_a_null_list_is_no_pods(server: Server, tmp_path: Path) -> None:
    server.body = b'{"items":null}'
    kubelet = client(server, tmp_path)
    assert await kubelet.pods() == []
    await kubelet.close()


async def test_the_certificate_is_checked_when_a_ca_is_given(server: Server, tmp_path: Path) -> None:
    right = client(server, tmp_path, ca=server.authority.cert_pem.bytes())
    assert not isinstance(await right.pods(), KubeletUnavailable)
    await right.close()
    wrong = client(server, tmp_path, ca=trustme.CA().cert_pem.bytes())
    refused = await wrong.pods()
    assert isinstance(refused, KubeletUnavailable)
    assert "certificate" in refused.why.lower()
    await wrong.close()


async def test_a_wrong_token_says_what_is_missing(server: Server, tmp_path: Path) -> None:
    kubelet = client(server, tmp_path, token="stale")
    refused = await kubelet.pods()
    assert isinstance(refused, KubeletUnavailable)
    assert "401" in refused.why
    assert "nodes/proxy" in refused.why
    await kubelet.close()


async def test_nonsense_is_no_answer(server: Server, tmp_path: Path) -> None:
    server.body = b"<html>"
    kubelet = client(server, tmp_path)
    assert isinstance(await kubelet.pods(), KubeletUnavailable)
    await kubelet.close()


@pytest.mark.parametrize(
    ("known", "why"),
    [
        pytest.param(None, "not seen yet", id="no-node"),
        pytest.param(node(0), "no kubelet port", id="no-port"),
        pytest.param(node(10250, "Hostname"), "no InternalIP", id="no-address"),
        pytest.param(node(1), "no answer", id="nobody-there"),
    ],
)
async def test_a_kubelet_that_cannot_be_found(known: Node | None, why: str) -> None:
    kubelet = KubeletClient(PodSourceSettings(), WallClock(), lambda: known)
    refused = await kubelet.pods()
    assert isinstance(refused, KubeletUnavailable)
    assert why in refused.why
    await kubelet.close()
