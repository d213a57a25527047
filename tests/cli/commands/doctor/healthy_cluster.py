"""Facts of a cluster on which `koord manifests` was applied and everything works, for tests to break one thing of."""

from __future__ import annotations

import base64
import functools
from datetime import UTC, datetime
from typing import Any

from koord.api.schema import crd_manifests
from koord.cli.commands.doctor.api_server_checks import NEEDED_GROUP_VERSIONS
from koord.cli.commands.doctor.facts import ClusterFacts, KoordletAnswers, ProgramAccess
from koord.cli.commands.doctor.program_checks import LEASE_NAMES
from koord.cli.manifests.manifests import manifests
from koord.manager.webhook_server import cert_store
from koord.manager.webhook_server.cert_rotator import SERVICE_NAME

Obj = dict[str, Any]

AT = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
NAMESPACE = "koordinator-system"
VERSION = "1.2.3"
IMAGE = f"example.org/koord:{VERSION}"
NODES = ("a", "b")
DNS_NAME = f"{SERVICE_NAME}.{NAMESPACE}.svc"
DEPLOYMENTS = ("koord-manager", "koord-scheduler", "koord-descheduler")


@functools.cache
def material() -> cert_store.CertificateMaterial:
    return cert_store.generate(DNS_NAME, AT)


@functools.cache
def other_material() -> cert_store.CertificateMaterial:
    return cert_store.generate(DNS_NAME, AT)


def bundle(pem: bytes) -> str:
    return base64.b64encode(pem).decode()


@functools.cache
def _manifests() -> tuple[Obj, ...]:
    made = manifests(image=IMAGE)
    assert not isinstance(made, str)
    return tuple(made)


def installed(kind: str) -> list[Obj]:
    return [one for one in _manifests() if one["kind"] == kind]


def crds() -> tuple[Obj, ...]:
    status = {"conditions": [{"type": "Established", "status": "True"}]}
    return tuple(
        {
            **one,
            "status": {**status, "storedVersions": [v["name"] for v in one["spec"]["versions"] if v["storage"]]},
        }
        for one in crd_manifests()
    )


def deployments() -> tuple[Obj, ...]:
    return tuple({**one, "status": {"readyReplicas": 2}} for one in installed("Deployment"))


def daemon_sets() -> tuple[Obj, ...]:
    status = {"desiredNumberScheduled": len(NODES), "numberReady": len(NODES)}
    return tuple({**one, "status": status} for one in installed("DaemonSet"))


def pod(program: str, name: str, node: str) -> Obj:
    return {
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": {"koord-app": program}},
        "spec": {"nodeName": node, "containers": [{"name": "main", "image": IMAGE}]},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    }


def pods() -> tuple[Obj, ...]:
    made = [pod(program, f"{program}-{node}", node) for program in DEPLOYMENTS for node in NODES]
    return (*made, *(pod("koordlet", f"koordlet-{node}", node) for node in NODES))


def lease(name: str, holder: str, renewed: str = "2026-03-01T11:59:58.123456Z") -> Obj:
    spec = {"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": renewed}
    return {"metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec}


def leases() -> tuple[Obj, ...]:
    return tuple(lease(name, f"{program}-a_0123") for program, name in LEASE_NAMES.items())


def webhooks(kind: str, pem: bytes | None = None) -> tuple[Obj, ...]:
    trusted = bundle(material().ca_cert if pem is None else pem)
    (one,) = installed(kind)
    hooks = [{**hook, "clientConfig": {**hook["clientConfig"], "caBundle": trusted}} for hook in one["webhooks"]]
    return ({**one, "webhooks": hooks},)


def node(name: str, *conditions: Obj) -> Obj:
    supported = {"type": "koordinator.sh/CPUSuppress", "status": "True", "reason": "Supported", "message": ""}
    return {"metadata": {"name": name}, "status": {"conditions": [supported, *conditions]}}


def node_metric(name: str, updated: str | None = "2026-03-01T11:59:30Z") -> Obj:
    return {"metadata": {"name": name}, "status": {"updateTime": updated} if updated else {}}


def answers(**hooks: Any) -> KoordletAnswers:
    row = {"knob": "cpu.max", "state": "supported", "how": "written", "errno": "", "strategies": []}
    told = {"safeMode": False, "connections": [{"name": "nri", "connected": True, "state": "connected"}], "hooks": []}
    return KoordletAnswers(capabilities={"capabilities": [row]}, hooks={**told, **hooks})


def config_map(name: str, data: dict[str, str]) -> Obj:
    return {"metadata": {"name": name, "namespace": NAMESPACE}, "data": data}


def workload(name: str, namespace: str, image: str, **labels: str) -> Obj:
    return {
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {"replicas": 1, "template": {"spec": {"containers": [{"name": "c", "image": image}]}}},
        "status": {"readyReplicas": 1},
    }


@functools.cache
def healthy() -> ClusterFacts:
    return ClusterFacts(
        at=AT,
        namespace=NAMESPACE,
        koord_version=VERSION,
        version={"major": "1", "minor": "35+", "gitVersion": "v1.35.1"},
        group_versions=NEEDED_GROUP_VERSIONS,
        crds=crds(),
        deployments=deployments(),
        daemon_sets=daemon_sets(),
        all_deployments=deployments(),
        all_daemon_sets=daemon_sets(),
        all_cron_jobs=(),
        access=(ProgramAccess(program="koord-manager", account="koord-manager", asked=74),),
        mutating_webhooks=webhooks("MutatingWebhookConfiguration"),
        validating_webhooks=webhooks("ValidatingWebhookConfiguration"),
        services=tuple(installed("Service")),
        endpoint_slices=(),
        serving_certificate=material().cert,
        leases=leases(),
        pods=pods(),
        config_maps=tuple(installed("ConfigMap")),
        nodes=tuple(node(name) for name in NODES),
        node_metrics=tuple(node_metric(name) for name in NODES),
        koordlets={name: answers() for name in NODES},
    )
