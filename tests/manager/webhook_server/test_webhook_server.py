"""The HTTPS server by itself: answers, refusals, and a certificate that changes under open connections."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import aiohttp
import jsonpatch
import pytest

from koord.api.kubernetes.admission import AdmissionRequest
from koord.manager.webhook_server.cert_store import CertificateMaterial, generate
from koord.manager.webhook_server.handlers import WebhookHandler
from koord.manager.webhook_server.metrics import WebhookMetrics
from koord.manager.webhook_server.server import ServerLimits, WebhookServer
from koord.manager.webhooks.admission import AdmissionDecision, AdmissionDenied
from koord.telemetry.clock import WallClock
from koord.telemetry.metrics import MetricRegistry
from tests.manager.webhook_server.replica_fixture import MUTATE_POD, PATH, label_object, review, trusting

NOW = datetime.now(UTC)


@pytest.fixture(scope="module")
def material() -> CertificateMaterial:
    return generate("127.0.0.1", NOW)


@pytest.fixture
async def server(material: CertificateMaterial) -> AsyncIterator[WebhookServer]:
    server = WebhookServer(
        {PATH: WebhookHandler(MUTATE_POD, decide)},
        WebhookMetrics(MetricRegistry()),
        WallClock(),
        pages={"/elasticQuota": lambda: {"a": 1}},
    )
    server.identity.adopt(material)
    await server.start("127.0.0.1", 0)
    yield server
    await server.stop()


async def decide(request: AdmissionRequest) -> AdmissionDecision:
    if request.name == "bad":
        raise KeyError("a fault of ours")
    if request.name == "deep":
        raise RecursionError("maximum recursion depth exceeded")
    if request.name == "slow":
        await asyncio.Event().wait()
    return AdmissionDenied(403, "not you") if request.name == "no" else label_object(request)


async def call(server: WebhookServer, pem: bytes, body: bytes | None = None, path: str = PATH) -> tuple[int, bytes]:
    async with aiohttp.ClientSession() as session:
        url = f"https://127.0.0.1:{server.port}{path}"
        method = (
            session.get(url, ssl=trusting(pem)) if body is None else session.post(url, data=body, ssl=trusting(pem))
        )
        async with method as answer:
            return answer.status, await answer.read()


async def test_a_mutation_comes_back_as_a_patch(server: WebhookServer, material: CertificateMaterial) -> None:
    status, raw = await call(server, material.ca_cert, review())
    response = json.loads(raw)["response"]
    sent = json.loads(review())["request"]["object"]
    assert status == 200
    after = jsonpatch.apply_patch(sent, json.loads(base64.b64decode(response["patch"])))
    assert after["metadata"] == {"name": "p", "labels": {"seen": "yes"}}


async def test_a_denial_is_an_answer(server: WebhookServer, material: CertificateMaterial) -> None:
    status, raw = await call(server, material.ca_cert, review(name="no"))
    response = json.loads(raw)["response"]
    assert (status, response["allowed"], response["status"]["code"]) == (200, False, 403)


async def test_a_malformed_review_is_400_and_counted(server: WebhookServer, material: CertificateMaterial) -> None:
    status, raw = await call(server, material.ca_cert, b'{"kind": "AdmissionReview"')
    assert status == 400
    assert "not an AdmissionReview" in json.loads(raw)["response"]["status"]["message"]
    assert _metric(server, "malformed_reviews") == 1


async def test_a_fault_of_ours_is_left_to_the_failure_policy(
    server: WebhookServer, material: CertificateMaterial
) -> None:
    status, _ = await call(server, material.ca_cert, review(name="bad"))
    assert status == 500
    assert _metric(server, "failed_decisions") == 1
    assert (await call(server, material.ca_cert, review()))[0] == 200


def nested(depth: int, name: str = "p") -> bytes:
    """A review of an object with lists in each other, so many that no parser of ours goes down to the end."""
    return review(name=name).replace(b'"metadata"', b'"x":' + b"[" * depth + b"]" * depth + b',"metadata"', 1)


@pytest.mark.parametrize("depth", [900, 990, 10_000, 400_000])
async def test_an_object_that_is_nested_too_deeply_is_400_and_the_server_goes_on(
    server: WebhookServer, material: CertificateMaterial, depth: int
) -> None:
    async with aiohttp.ClientSession() as session:
        for path, body in ((PATH, nested(depth)), ("/convert", nested(depth))):
            url = f"https://127.0.0.1:{server.port}{path}"
            async with session.post(url, data=body, ssl=trusting(material.ca_cert)) as answer:
                said = await answer.text()
                assert answer.status == 400 or (depth < 1000 and answer.status == 200), said
                if answer.status == 400 and path == PATH:
                    assert "nested too deeply" in said
    assert (await call(server, material.ca_cert, review()))[0] == 200
    assert _metric(server, "failed_decisions") == 0


async def test_a_decision_that_runs_out_of_stack_is_400(server: WebhookServer, material: CertificateMaterial) -> None:
    status, raw = await call(server, material.ca_cert, review(name="deep"))
    assert status == 400
    assert "nested too deeply" in json.loads(raw)["response"]["status"]["message"]


@pytest.fixture
async def impatient(material: CertificateMaterial, request: pytest.FixtureRequest) -> AsyncIterator[WebhookServer]:
    """A server with the limits that the test names; all others are out of reach."""
    limits = ServerLimits(**{"header_s": 600.0, "body_s": 600.0, "decision_s": 600.0, **request.param})
    handlers = {PATH: WebhookHandler(MUTATE_POD, decide)}
    server = WebhookServer(handlers, WebhookMetrics(MetricRegistry()), WallClock(), limits=limits)
    server.identity.adopt(material)
    await server.start("127.0.0.1", 0)
    yield server
    await server.stop()


async def send(server: WebhookServer, pem: bytes, text: bytes) -> bytes:
    """Send some bytes, nothing more, and return what comes until the server hangs up."""
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", server.port, ssl=trusting(pem), server_hostname="127.0.0.1"
    )
    try:
        writer.write(text)
        await writer.drain()
        async with asyncio.timeout(30):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


@pytest.mark.parametrize("impatient", [{"header_s": 0.05}], indirect=True)
@pytest.mark.parametrize("sent", [b"", b"POST / HTTP/1.1\r\nHost: a\r\nX-Slow: "], ids=["nothing", "half-a-head"])
async def test_a_connection_without_a_request_is_closed(
    impatient: WebhookServer, material: CertificateMaterial, sent: bytes
) -> None:
    assert await send(impatient, material.ca_cert, sent) == b""


@pytest.mark.parametrize("impatient", [{"body_s": 0.05}], indirect=True)
async def test_a_body_that_does_not_come_is_408(impatient: WebhookServer, material: CertificateMaterial) -> None:
    sent = f"POST {PATH} HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{{".encode()
    said = await send(impatient, material.ca_cert, sent)
    assert said.startswith(b"HTTP/1.1 408")
    assert said.endswith(b"the body did not come within 0.05 s")
    assert (await call(impatient, material.ca_cert, None, "/healthz"))[0] == 200


@pytest.mark.parametrize("impatient", [{"body_bytes": 1000, "decision_s": 0.05}], indirect=True)
async def test_a_large_body_and_a_slow_decision_have_an_end(
    impatient: WebhookServer, material: CertificateMaterial
) -> None:
    assert (await call(impatient, material.ca_cert, b" " * 2000))[0] == 413
    assert (await call(impatient, material.ca_cert, review(name="slow")))[0] == 500
    assert _metric(impatient, "failed_decisions") == 1


async def test_health_pages_and_unknown_paths(server: WebhookServer, material: CertificateMaterial) -> None:
    assert await call(server, material.ca_cert, None, "/healthz") == (200, b"ok")
    assert await call(server, material.ca_cert, None, "/elasticQuota") == (200, b'{"a":1}')
    assert (await call(server, material.ca_cert, b"{}", "/mutate-other"))[0] == 404


async def test_conversion_knows_one_version(server: WebhookServer, material: CertificateMaterial) -> None:
    def ask(wanted: str) -> bytes:
        objects = [{"apiVersion": "slo.koordinator.sh/v1alpha1", "kind": "NodeSLO"}]
        request = {"uid": "u", "desiredAPIVersion": wanted, "objects": objects}
        body = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview", "request": request}
        return json.dumps(body).encode()

    async def result(wanted: str) -> dict[str, Any]:
        status, raw = await call(server, material.ca_cert, ask(wanted), "/convert")
        assert status == 200
        response: dict[str, Any] = json.loads(raw)["response"]
        return response

    same = await result("slo.koordinator.sh/v1alpha1")
    assert same["result"]["status"] == "Success"
    assert same["convertedObjects"][0]["kind"] == "NodeSLO"
    assert "no conversion from" in (await result("slo.koordinator.sh/v2"))["result"]["message"]
    assert (await call(server, material.ca_cert, b"{}", "/convert"))[0] == 400


async def test_new_connections_get_the_new_certificate_and_old_ones_live_on(
    server: WebhookServer, material: CertificateMaterial
) -> None:
    new = generate("127.0.0.1", NOW)
    url = f"https://127.0.0.1:{server.port}{PATH}"
    async with aiohttp.ClientSession() as session:
        trust = trusting(material.ca_cert)
        async with session.post(url, data=review(), ssl=trust) as answer:
            assert answer.status == 200
            await answer.read()
        server.identity.adopt(new)
        assert (await call(server, new.ca_cert, review()))[0] == 200
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await call(server, material.ca_cert, review())
        async with session.post(url, data=review(), ssl=trust) as answer:  # the connection from before
            assert answer.status == 200


async def test_a_pair_that_does_not_fit_changes_nothing(server: WebhookServer, material: CertificateMaterial) -> None:
    broken = CertificateMaterial(
        ca_key=material.ca_key, ca_cert=material.ca_cert, cert=material.cert, key=material.ca_key
    )
    with pytest.raises(ssl.SSLError):
        server.identity.adopt(broken)
    assert (await call(server, material.ca_cert, review()))[0] == 200


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=["tls-1.2", "tls-1.3"])
@pytest.mark.parametrize("name", [None, "localhost"], ids=["without-server-name", "with-server-name"])
async def test_every_kind_of_handshake_is_given_the_certificate(
    server: WebhookServer, material: CertificateMaterial, version: ssl.TLSVersion, name: str | None
) -> None:
    trust = trusting(material.ca_cert)
    trust.minimum_version = trust.maximum_version = version
    async with aiohttp.ClientSession() as session:
        url = f"https://127.0.0.1:{server.port}/healthz"
        async with session.get(url, ssl=trust, server_hostname=name) as answer:
            assert answer.status == 200


def _metric(server: WebhookServer, name: str) -> float:
    family = getattr(server._metrics, name)
    return float(family.labels(PATH).value)


async def test_a_server_that_stops_answers_on_and_has_callers_hang_up(
    server: WebhookServer, material: CertificateMaterial
) -> None:
    """A caller with an open connection must not lose the call that it makes in that moment."""
    url = f"https://127.0.0.1:{server.port}{PATH}"
    connector = aiohttp.TCPConnector(limit=1)
    async with aiohttp.ClientSession(connector=connector) as session:
        async with session.post(url, data=review(), ssl=trusting(material.ca_cert)) as answer:
            assert answer.headers.get("Connection") != "close"
            await answer.read()
        stopped = asyncio.create_task(server.stop())
        await asyncio.sleep(0)  # it has begun
        async with session.post(url, data=review(), ssl=trusting(material.ca_cert)) as answer:
            assert (answer.status, answer.headers.get("Connection")) == (200, "close")
            await answer.read()
        await stopped
        with pytest.raises(aiohttp.ClientConnectionError):
            await session.post(url, data=review(), ssl=trusting(material.ca_cert))


@pytest.mark.parametrize("impatient", [{"drain_s": 0.0}], indirect=True)
async def test_a_request_that_has_come_when_the_server_closes_idle_connections_is_answered(
    impatient: WebhookServer, material: CertificateMaterial
) -> None:
    """An API server may send on a connection that it kept in the very moment in which the replica ends."""
    body = review()
    request = f"POST {PATH} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
    kept = [
        await asyncio.open_connection(
            "127.0.0.1", impatient.port, ssl=trusting(material.ca_cert), server_hostname="127.0.0.1"
        )
        for _ in range(20)
    ]
    for reader, writer in kept:
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))
    for _, writer in kept:
        writer.write(request)
    await impatient.stop()
    for reader, writer in kept:
        said = await reader.read()
        writer.close()
        assert said.startswith(b"HTTP/1.1 200"), said
        assert b"connection: close" in said.lower()
