"""Each rule tells a violation from what is just allowed."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from koord.api.koordinator.protocol import A_DEVICE_ALLOCATED, A_RESOURCE_STATUS, DESCHEDULER_NAME, L_QUOTA_NAME
from koord.manager.webhook_server import cert_store
from koord.manager.webhook_server.cert_store import CertificateMaterial
from tests import cluster_rules

Json = dict[str, Any]


def pod(name: str, node: str = "n0", *, quota: str = "", annotations: Json | None = None, **requests: str) -> Json:
    labels = {L_QUOTA_NAME: quota} if quota else {}
    written = {key: json.dumps(value) for key, value in (annotations or {}).items()}
    return {
        "metadata": {"name": name, "labels": labels, "annotations": written},
        "spec": {"nodeName": node, "containers": [{"resources": {"requests": requests}}, {}]},
        "status": {},
    }


def node(**allocatable: str) -> Json:
    return {"metadata": {"name": "n0"}, "status": {"allocatable": {"pods": "10", **allocatable}}}


@pytest.mark.parametrize(
    ("requests", "wrong"),
    [
        pytest.param(["1", "1"], 0, id="just-full"),
        pytest.param(["1", "1001m"], 1, id="a-milli-too-much"),
        pytest.param(["2", "1u"], 1, id="less-than-a-milli-too-much"),
    ],
)
def test_overcommitted_nodes(requests: list[str], wrong: int) -> None:
    pods = [pod(str(number), cpu=cpu) for number, cpu in enumerate(requests)]
    assert len(cluster_rules.overcommitted_nodes(pods, [node(cpu="2")])) == wrong
    assert cluster_rules.overcommitted_nodes(pods, [node(cpu="2")], ("memory",)) == []


def test_nodes_have_room_for_so_many_pods() -> None:
    pods = [pod(str(number)) for number in range(11)]
    assert cluster_rules.overcommitted_nodes(pods[:10], [node()]) == []
    assert cluster_rules.overcommitted_nodes(pods, [node()]) == ["node n0: 11 of pods are more than it has"]


def test_a_resource_that_a_node_lacks_is_none() -> None:
    assert len(cluster_rules.overcommitted_nodes([pod("a", memory="1")], [node(cpu="2")])) == 1


def cpus(name: str, text: str, on: str = "n0") -> Json:
    return pod(name, on, annotations={A_RESOURCE_STATUS: {"cpuset": text}})


def test_cpus_given_twice() -> None:
    assert cluster_rules.cpus_given_twice([cpus("a", "0-1"), cpus("b", "2"), cpus("c", "0", "n1"), pod("d")]) == []
    assert cluster_rules.cpus_given_twice([cpus("a", "0-1"), cpus("b", "1-2")]) == ["CPU 1 of n0: ['a', 'b']"]


def card(name: str, percent: str, minor: int = 0) -> Json:
    held = {"gpu": [{"minor": minor, "resources": {cluster_rules.PERCENT_OF_A_CARD: percent}}]}
    return pod(name, annotations={A_DEVICE_ALLOCATED: held})


def test_cards_given_twice() -> None:
    assert cluster_rules.cards_given_twice([card("a", "50"), card("b", "50"), card("c", "100", 1)]) == []
    assert cluster_rules.cards_given_twice([card("a", "50"), card("b", "51")]) == ["card 0 of n0: 101 percent"]


def test_quotas_exceeded() -> None:
    pods = [
        pod("a", quota="q", cpu="1"),
        pod("b", quota="q", cpu="2"),
        pod("c", "", quota="q", cpu="9"),
        pod("d", cpu="9"),
    ]
    assert cluster_rules.quotas_exceeded(pods, {"q": {"cpu": "3", "memory": "1Gi"}, "other": {"cpu": "0"}}) == []
    assert cluster_rules.quotas_exceeded(pods, {"q": {"cpu": "2900m"}}) == ["quota q: 3 of cpu, 2900m allowed"]


@pytest.mark.parametrize(("bound", "partial"), [(0, []), (1, ["g"]), (2, ["g"]), (3, [])])
def test_partial_gangs(bound: int, partial: list[str]) -> None:
    members = [pod(f"g-{number}", "n0" if number < bound else "") for number in range(4)]

    def gang_of(member: Json) -> tuple[str, int] | None:
        return ("g", 3) if member["metadata"]["name"].startswith("g-") else None

    assert cluster_rules.partial_gangs([*members, pod("single")], gang_of) == partial


def test_refused_though_bound() -> None:
    refused = {"conditions": [{"type": "PodScheduled", "status": "False"}]}
    taken = {"conditions": [{"type": "PodScheduled", "status": "True"}]}
    bound, waiting = pod("a") | {"status": refused}, pod("b", "") | {"status": refused}
    assert cluster_rules.refused_though_bound([waiting, pod("c") | {"status": taken}]) == []
    (said,) = cluster_rules.refused_though_bound([bound, waiting])
    assert said.startswith("pod a is bound and has PodScheduled=False")


@pytest.mark.parametrize(
    ("before", "now", "wrong"), [("", "", 0), ("", "n0", 0), ("n0", "n0", 0), ("n0", "n1", 1), ("n0", "", 1)]
)
def test_moved_though_bound(before: str, now: str, wrong: int) -> None:
    assert len(cluster_rules.moved_though_bound(pod("a", now), before)) == wrong


def test_bound_twice() -> None:
    def line(name: str, code: int, subresource: str = "binding") -> Json:
        return {
            "objectRef": {"namespace": "x", "name": name, "subresource": subresource},
            "responseStatus": {"code": code},
        }

    assert cluster_rules.bound_twice([line("a", 201), line("a", 409), line("b", 201), line("a", 201, "status")]) == []
    assert cluster_rules.bound_twice([line("a", 201), line("a", 201)]) == ["pod x/a was bound 2 times"]


def eviction(name: str, code: int) -> Json:
    ref = {"namespace": "x", "name": name, "resource": "pods", "subresource": "eviction"}
    return {"verb": "create", "objectRef": ref, "responseStatus": {"code": code}}


def job(name: str, phase: str, pod: str = "p") -> Json:
    spec = {"podRef": {"namespace": "x", "name": pod}}
    return {"metadata": {"name": name, "uid": f"uid-{name}"}, "spec": spec, "status": {"phase": phase} if phase else {}}


def test_failed_though_evicted() -> None:
    evicted = cluster_rules.accepted_evictions([eviction("a", 201), eviction("b", 429)])
    assert evicted == {"x/a"}
    jobs = [job("1", "Succeeded", "a"), job("2", "Failed", "b"), job("3", "Running", "a")]
    assert cluster_rules.failed_though_evicted(jobs, evicted) == []
    (said,) = cluster_rules.failed_though_evicted([job("4", "Failed", "a")], evicted)
    assert said.startswith("job 4 evicted its pod and failed")


def reservation(of: str, phase: str, ttl: str = "5m", by: str = DESCHEDULER_NAME) -> Json:
    meta = {
        "name": f"uid-{of}",
        "labels": {"app.kubernetes.io/created-by": by},
        "creationTimestamp": "2026-01-01T00:00:00Z",
    }
    return {"metadata": meta, "spec": {"ttl": ttl}, "status": {"phase": phase}}


BEGAN_S = datetime(2026, 1, 1, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("phase", "made", "age_s", "wrong"),
    [
        pytest.param("Running", reservation("1", "Available"), 9999, 0, id="its-job-goes-on"),
        pytest.param("", reservation("1", "Pending"), 0, 0, id="its-job-has-not-begun"),
        pytest.param("Succeeded", reservation("1", "Succeeded"), 9999, 0, id="taken"),
        pytest.param("Succeeded", reservation("1", "Available"), 10, 1, id="done-and-still-there"),
        pytest.param("Failed", reservation("1", "Available"), 309, 0, id="about-to-expire"),
        pytest.param("Failed", reservation("1", "Available"), 311, 1, id="should-have-expired"),
        pytest.param("Failed", reservation("1", "Available", ttl=""), 0, 1, id="never-expires"),
        pytest.param("Failed", reservation("1", "Failed"), 9999, 0, id="has-expired"),
        pytest.param("Failed", reservation("other", "Available", ttl=""), 0, 1, id="its-job-is-gone"),
        pytest.param("Failed", reservation("1", "Available", ttl="", by="me"), 0, 0, id="not-made-for-a-job"),
    ],
)
def test_reservations_left(phase: str, made: Json, age_s: float, wrong: int) -> None:
    assert len(cluster_rules.reservations_left([made], [job("1", phase)], BEGAN_S + age_s, 10.0)) == wrong


def creation(name: str, *notes: tuple[str, str], code: int = 201, subresource: str = "") -> Json:
    ref = {"namespace": "x", "name": name, "resource": "pods", "subresource": subresource}
    annotations = {}
    for number, (kind, webhook) in enumerate(notes):
        text = json.dumps({"webhook": webhook, "mutated": True}) if kind == cluster_rules.CALLED else webhook
        annotations[f"{kind}round_0_index_{number}"] = text
    return {"verb": "create", "objectRef": ref, "responseStatus": {"code": code}, "annotations": annotations}


def test_admitted_by() -> None:
    called, failed = (cluster_rules.CALLED, "w"), (cluster_rules.FAILED_OPEN, "w")
    lines = [
        creation("a", called),
        creation("passed-over", called, failed),
        creation("refused", called, code=403),
        creation("another", (cluster_rules.CALLED, "v")),
        creation("uncalled"),
        creation("binding", called, subresource="binding"),
    ]
    assert cluster_rules.admitted_by(lines, "w") == {"x/a"}


def test_not_mutated() -> None:
    def labelled(name: str, **labels: str) -> Json:
        return {"metadata": {"name": name, "namespace": "x", "labels": labels}}

    pods = [labelled("a", p="1", done="yes"), labelled("b", p="1"), labelled("c", p="1"), labelled("d")]
    (said,) = cluster_rules.not_mutated(pods, {"x/a", "x/b", "x/d"}, {"p": "1"}, "done")
    assert said.startswith("pod b was admitted")


def test_untrusted_certificate() -> None:
    def configuration(*bundles: bytes) -> Json:
        entries = [
            {"name": str(number), "clientConfig": {"caBundle": base64.b64encode(bundle).decode()}}
            for number, bundle in enumerate(bundles)
        ]
        return {"metadata": {"name": "c"}, "webhooks": entries}

    moment = datetime.now(UTC)
    one, two = (cert_store.generate("localhost", moment, CertificateMaterial()) for _ in range(2))
    served = x509.load_pem_x509_certificate(one.cert).public_bytes(Encoding.DER)
    assert cluster_rules.untrusted_certificate(served, [configuration(one.ca_cert, two.ca_cert + one.ca_cert)]) == []
    (said,) = cluster_rules.untrusted_certificate(served, [configuration(two.ca_cert, one.ca_cert)])
    assert said.startswith("0 of c does not trust")
    assert len(cluster_rules.untrusted_certificate(served, [configuration(b"")])) == 1
