"""A component server works over real sockets: health texts, routes, TLS, guards and badly behaved clients."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
import trustme

from koord.telemetry import component_server, http_routing
from koord.telemetry import component_server as module
from koord.telemetry.clock import WallClock
from koord.telemetry.component_server import ComponentServer, ServiceRoutes
from koord.telemetry.http_routing import HttpCall, HttpReply
from koord.telemetry.metrics import MetricRegistry
from koord.telemetry.serving_certificate import ServingCertificate, ServingCertificateError, self_signed


@pytest.fixture
async def served() -> AsyncIterator[ComponentServer]:
    endpoint = ComponentServer(WallClock())
    yield endpoint
    await endpoint.close()


async def ask(port: int, path: str, method: str = "GET", *, body: str = "", **headers: str) -> tuple[int, str]:
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, f"http://127.0.0.1:{port}{path}", data=body or None, headers=headers) as answer,
    ):
        return answer.status, await answer.text()


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        pytest.param("/readyz", 500, "[+]ping ok\n[-]sync failed: reason withheld\nreadyz check failed\n", id="fails"),
        pytest.param("/readyz?exclude=sync", 200, "ok", id="excluded"),
        pytest.param(
            "/readyz?exclude=sync&verbose",
            200,
            "[+]ping ok\n[+]sync excluded: ok\nreadyz check passed\n",
            id="excluded-verbose",
        ),
        pytest.param(
            "/livez?verbose&exclude=nope",
            200,
            '[+]ping ok\nwarn: some health checks cannot be excluded: no matches for "nope"\nlivez check passed\n',
            id="exclude-what-is-not-there",
        ),
        pytest.param("/readyz/ping", 200, "ok", id="one"),
        pytest.param("/readyz/sync", 500, "internal server error: pods are not listed yet\n", id="one-fails"),
        pytest.param("/readyz/nope", 404, "404 page not found\n", id="no-such-check"),
        pytest.param("/nope", 404, "404 page not found\n", id="no-such-path"),
    ],
)
async def test_health_is_told_as_kubernetes_tells_it(
    served: ComponentServer, path: str, status: int, text: str
) -> None:
    served.health("livez", {"ping": component_server.ping})
    served.health("readyz", {"ping": component_server.ping, "sync": lambda: "pods are not listed yet"})
    port = await served.listen("127.0.0.1", 0)
    assert await ask(port, path) == (status, text)


async def test_metrics_are_negotiated(served: ComponentServer) -> None:
    registry = MetricRegistry()
    registry.counter("c_total", "C.").labels().inc()
    served.metrics([registry])
    port = await served.listen("127.0.0.1", 0)
    assert await ask(port, "/metrics") == (200, "# HELP c_total C.\n# TYPE c_total counter\nc_total 1\n")
    _, text = await ask(port, "/metrics", Accept="application/openmetrics-text;version=1.0.0")
    assert text.endswith("# EOF\n")


async def test_flags_are_put(served: ComponentServer) -> None:
    seen: list[int] = []

    def put(text: str) -> str:
        seen.append(int(text))
        return f"set to {text}"

    served.flag("v", put)
    served.config(lambda: {"parallelism": 16})
    port = await served.listen("127.0.0.1", 0)
    assert await ask(port, "/debug/flags/v", "PUT", body="5") == (200, "set to 5\n")
    assert (await ask(port, "/debug/flags/v", "PUT", body="x"))[0] == 400
    assert await ask(port, "/debug/flags/v") == (406, "unsupported http method\n")
    assert await ask(port, "/configz") == (200, '{"componentconfig":{"parallelism":16}}')
    assert seen == [5]


async def test_services_wait_for_leadership(served: ComponentServer) -> None:
    leading = False
    services = ServiceRoutes(served, unavailable=lambda: None if leading else "the instance is not leader")

    async def node(call: HttpCall) -> object:
        name = call.parameters["nodeName"]
        return {"node": name} if name == "a" else http_routing.error_reply(404, f"cannot find node {name}")

    services.add("GET", "/nodes/:nodeName", node)
    services.plugin("Coscheduling", [("/gangs", lambda _: [])])
    port = await served.listen("127.0.0.1", 0)
    assert await ask(port, "/apis/v1/nodes/a") == (503, '{"message":"the instance is not leader"}')
    leading = True
    assert await ask(port, "/apis/v1/nodes/a") == (200, '{"node":"a"}')
    assert await ask(port, "/apis/v1/nodes/b") == (404, '{"message":"cannot find node b"}')
    assert (await ask(port, "/apis/v1/nodes/"))[0] == 404
    assert await ask(port, "/apis/v1/__services__") == (
        200,
        '{"GET":["/apis/v1/__services__","/apis/v1/nodes/:nodeName","/apis/v1/plugins/Coscheduling/gangs"]}',
    )


async def test_a_handler_that_fails_hurts_nobody_else(served: ComponentServer) -> None:
    served.routes.add("GET", "/bad", lambda _: 1 / 0)
    served.routes.add("GET", "/good", lambda _: {"a": 1})
    port = await served.listen("127.0.0.1", 0)
    assert await ask(port, "/bad") == (500, "internal server error\n")
    assert await ask(port, "/good") == (200, '{"a":1}')


async def test_a_guard_stands_before_its_port_only(served: ComponentServer) -> None:
    async def guard(call: HttpCall) -> HttpReply | None:
        return None if call.path == "/open" else http_routing.status_reply(403, "Forbidden", "no")

    for path in ("/open", "/shut"):
        served.routes.add("GET", path, lambda _: {})
    guarded = await served.listen("127.0.0.1", 0, guard=guard)
    plain = await served.listen("127.0.0.1", 0)
    assert (await ask(guarded, "/open"))[0] == 200
    status, text = await ask(guarded, "/shut")
    assert status == 403
    assert text.startswith('{\n  "kind": "Status"')
    assert (await ask(plain, "/shut"))[0] == 200


async def test_a_client_that_never_reads_is_cut_off(served: ComponentServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANSWER_TIMEOUT_S", 0.05)
    served.routes.add("GET", "/big", lambda _: HttpReply(body=b"x" * (64 << 20)))
    served.routes.add("GET", "/small", lambda _: {})
    port = await served.listen("127.0.0.1", 0)
    server = served._runners[0].server
    assert server is not None
    _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)  # its buffer is small and never read
    writer.write(b"GET /big HTTP/1.1\r\nHost: a\r\n\r\n")
    assert await ask(port, "/small") == (200, "{}")
    while server.connections:  # noqa: ASYNC110 - nothing tells when a connection ends
        await asyncio.sleep(0)
    assert await ask(port, "/small") == (200, "{}")
    writer.close()


async def test_a_caller_that_does_not_wait_is_no_fault(
    served: ComponentServer, caplog: pytest.LogCaptureFixture
) -> None:
    """A prober hangs up after its timeout, while a program that starts on a busy machine still prepares its answer."""

    def closing(_: HttpCall) -> object:
        assert server is not None
        (connection,) = server.connections
        assert connection.transport is not None
        connection.transport.close()  # as the end of the caller's side does
        return {}

    served.routes.add("GET", "/closing", closing)
    port = await served.listen("127.0.0.1", 0)
    server = served._runners[0].server
    with pytest.raises(aiohttp.ServerDisconnectedError):
        await ask(port, "/closing")
    assert [one.message for one in caplog.records if one.levelname == "ERROR"] == []


async def test_connections_are_capped(served: ComponentServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_CONNECTIONS", 1)
    served.routes.add("GET", "/small", lambda _: {})
    port = await served.listen("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /small HTTP/1.1\r\nHost: a\r\n\r\n")
    assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    with pytest.raises(aiohttp.ClientError):
        await ask(port, "/small")
    writer.close()


async def test_a_self_signed_certificate_is_kept_in_its_folder(served: ComponentServer, tmp_path: Path) -> None:
    served.routes.add("GET", "/small", lambda _: {})
    certificate = self_signed("koord-scheduler", ["127.0.0.1"], str(tmp_path))
    port = await served.listen("127.0.0.1", 0, certificate=certificate)
    trusted = ssl.create_default_context(cafile=str(tmp_path / "koord-scheduler.crt"))
    async with aiohttp.ClientSession() as session, session.get(f"https://127.0.0.1:{port}/small", ssl=trusted) as got:
        assert got.status == 200
    before = (tmp_path / "koord-scheduler.crt").read_bytes()
    self_signed("koord-scheduler", ["127.0.0.1"], str(tmp_path))
    assert (tmp_path / "koord-scheduler.crt").read_bytes() == before
    assert (tmp_path / "koord-scheduler.key").stat().st_mode & 0o777 == 0o600


async def test_renewed_files_are_taken_over_and_bad_ones_are_not(served: ComponentServer, tmp_path: Path) -> None:
    certificate = self_signed("first", ["127.0.0.1"], str(tmp_path))
    other = tmp_path / "other"
    self_signed("second", ["127.0.0.1"], str(other))
    port = await served.listen("127.0.0.1", 0, certificate=certificate)
    for part in ("crt", "key"):
        (tmp_path / f"first.{part}").write_bytes((other / f"second.{part}").read_bytes())
    assert certificate.refresh()
    assert not certificate.refresh()
    shown = await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", port))
    assert shown.strip() == (other / "second.crt").read_text().strip()
    (tmp_path / "first.crt").write_text("nonsense")
    with pytest.raises(ServingCertificateError, match=r"first\.crt"):
        certificate.refresh()
    with pytest.raises(ServingCertificateError, match="No such file"):
        ServingCertificate(str(tmp_path / "none"), str(tmp_path / "none"))


@pytest.mark.parametrize("shown", [pytest.param(True, id="shown"), pytest.param(False, id="not-shown")])
async def test_a_verified_client_certificate_is_handed_on(served: ComponentServer, tmp_path: Path, shown: bool) -> None:
    authority = trustme.CA()
    (tmp_path / "ca.crt").write_bytes(authority.cert_pem.bytes())
    issued = authority.issue_cert("alice@example.com", common_name="alice", organization_name="ops")
    issued.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "alice.pem"))
    served.routes.add("GET", "/who", lambda call: {"subject": (call.certificate or {}).get("subject")})
    certificate = self_signed("server", ["127.0.0.1"], str(tmp_path), client_ca=str(tmp_path / "ca.crt"))
    port = await served.listen("127.0.0.1", 0, certificate=certificate)
    context = ssl.create_default_context(cafile=str(tmp_path / "server.crt"))
    if shown:
        context.load_cert_chain(tmp_path / "alice.pem")
    async with aiohttp.ClientSession() as session, session.get(f"https://127.0.0.1:{port}/who", ssl=context) as got:
        assert ("alice" in await got.text()) is shown
    with pytest.raises(ServingCertificateError, match="No such file"):
        self_signed("server", [], str(tmp_path), client_ca=str(tmp_path / "none"))


async def test_results_of_health_checks_are_served_as_slis(served: ComponentServer) -> None:
    served.health("readyz", {"ping": component_server.ping, "sync": lambda: "pods are not listed yet"})
    served.slis()
    port = await served.listen("127.0.0.1", 0)
    await ask(port, "/readyz")
    _, text = await ask(port, "/metrics/slis")
    assert 'kubernetes_healthcheck{name="ping",type="readyz"} 1' in text
    assert 'kubernetes_healthcheck{name="sync",type="readyz"} 0' in text
    assert 'kubernetes_healthchecks_total{name="sync",status="error",type="readyz"} 1' in text
