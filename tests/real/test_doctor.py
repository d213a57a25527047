"""`koord doctor` and `koord support-bundle` on a real API server with RBAC: before an installation, with one from
`koord manifests`, with an expired certificate, and for programs and people without rights.
"""

from __future__ import annotations

import base64
import json
import tarfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from koord.cli.main import cli
from koord.cli.manifests.manifests import manifests
from koord.manager.webhook_server import cert_store
from koord.manager.webhook_server.cert_rotator import SECRET_NAME, SERVICE_NAME
from tests.real.installed_plane import InstalledPlane, bare_plane
from tests.real.kubectl import kubectl
from tests.real.manager_process import account

pytestmark = pytest.mark.real

Obj = dict[str, Any]

NAMESPACE = "koordinator-system"
MASTER_KEY = "very-secret-value"


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InstalledPlane]:
    with bare_plane(tmp_path_factory.mktemp("doctor")) as plane:
        yield plane


@pytest.fixture(scope="module")
def untouched(bare: InstalledPlane) -> Result:
    """What is said before anything is installed."""
    return koord(bare.plane.kubeconfig, "doctor", "-o", "json")


@pytest.fixture(scope="module")
def installed(bare: InstalledPlane, untouched: Result) -> InstalledPlane:
    made = manifests()
    assert isinstance(made, list)
    bare.apply([one for one in made if one["kind"] in ("Namespace", "CustomResourceDefinition")])
    kubectl(bare.plane.kubeconfig, "wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
    bare.apply(made)
    return bare


def koord(kubeconfig: Path, *args: str) -> Result:
    return CliRunner().invoke(cli, [*args, "--kubeconfig", str(kubeconfig)])


def findings(done: Result) -> dict[str, list[Obj]]:
    assert done.exit_code in (0, 1), done.output
    assert not done.stderr
    found: dict[str, list[Obj]] = {}
    for one in json.loads(done.stdout)["findings"]:
        found.setdefault(one["id"], []).append(one)
    return found


def members(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as archive:
        held = {info.name.partition("/")[2]: archive.extractfile(info) for info in archive if info.isfile()}
        return {name: file.read() for name, file in held.items() if file is not None}


def test_before_an_installation_nothing_is_wrong(untouched: Result) -> None:
    assert untouched.exit_code == 0
    found = findings(untouched)
    fine = {"api-server", "crds-not-installed", "webhooks", "conflicts", "configuration", "yarn"}
    assert set(found) == {"not-installed", *fine}
    assert [one["severity"] for one in found["not-installed"]] == ["info"]
    report = json.loads(untouched.stdout)
    assert {one["check"] for one in report["skipped"]} >= {"leases", "rbac", "koordlets"}


def test_an_installation_from_manifests_has_its_rights(installed: InstalledPlane) -> None:
    """No controller runs here, so that no pod starts; what does not depend on pods is right."""
    done = koord(installed.plane.kubeconfig, "doctor", "-o", "json")
    assert done.exit_code == 1
    found = findings(done)
    for fine in ("api-server", "crds", "rbac", "webhooks", "conflicts", "configuration", "versions"):
        assert [one["severity"] for one in found[fine]] == ["ok"], found
    assert "program-not-ready" in found
    assert "webhook-ca-missing" in found
    assert "not-readable" not in found


def test_an_expired_certificate_is_told(installed: InstalledPlane) -> None:
    made = cert_store.generate(f"{SERVICE_NAME}.{NAMESPACE}.svc", datetime.now(UTC) - timedelta(days=11 * 365))
    data = {name: base64.b64encode(content).decode() for name, content in made.files().items()}
    installed.apply(
        [
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {"name": SECRET_NAME, "namespace": NAMESPACE},
                "data": data,
            }
        ]
    )
    trusted = base64.b64encode(made.ca_cert).decode()
    for kind in ("mutating", "validating"):
        target = (f"{kind}webhookconfiguration", f"koordinator-{kind}-webhook-configuration")
        there = json.loads(kubectl(installed.plane.kubeconfig, "get", *target, "-o", "json").out)
        patch = [
            {"op": "add", "path": f"/webhooks/{index}/clientConfig/caBundle", "value": trusted}
            for index in range(len(there["webhooks"]))
        ]
        said = kubectl(installed.plane.kubeconfig, "patch", *target, "--type=json", "-p", json.dumps(patch))
        assert said.code == 0, said.err
    done = koord(installed.plane.kubeconfig, "doctor", "--only", "webhook-certificate", "-o", "json")
    expired = findings(done)["webhook-certificate-expired"]
    assert len(expired) == 2, "the certificate and its authority"
    for one in expired:
        assert str(datetime.now(UTC).year - 1) in one["what"]
        assert "koord-manager" in one["fix"]


def test_rights_that_a_role_lost_are_named(installed: InstalledPlane) -> None:
    role = json.loads(
        kubectl(installed.plane.kubeconfig, "get", "clusterrole", "koord-scheduler-role", "-o", "json").out
    )
    kept = [rule for rule in role["rules"] if "reservations" not in rule["resources"]]
    assert kept != role["rules"]
    patch = json.dumps({"rules": kept})
    said = kubectl(
        installed.plane.kubeconfig, "patch", "clusterrole", "koord-scheduler-role", "--type=merge", "-p", patch
    )
    assert said.code == 0, said.err
    try:
        done = koord(installed.plane.kubeconfig, "doctor", "--only", "rbac", "-o", "json")
        (missing,) = findings(done)["rights-missing"]
        assert "koord-scheduler" in missing["what"]
        assert "list reservations.scheduling.koordinator.sh" in missing["objects"]
        assert all("reservations" in one for one in missing["objects"])
    finally:
        patch = json.dumps({"rules": role["rules"]})
        kubectl(installed.plane.kubeconfig, "patch", "clusterrole", "koord-scheduler-role", "--type=merge", "-p", patch)


def test_a_user_without_rights_is_told_which(installed: InstalledPlane, tmp_path: Path) -> None:
    """An account that may look at workloads of the namespace, and at nothing else."""
    reader = installed.plane.kubeconfig
    for command in (
        ("create", "serviceaccount", "looker", "-n", NAMESPACE),
        ("create", "role", "looker", "-n", NAMESPACE, "--verb=list", "--resource=deployments,daemonsets,pods"),
        ("create", "rolebinding", "looker", "-n", NAMESPACE, "--role=looker", f"--serviceaccount={NAMESPACE}:looker"),
    ):
        said = kubectl(reader, *command)
        assert said.code == 0, said.err
    kubeconfig = account(installed.plane, tmp_path, "looker", NAMESPACE)
    found = findings(koord(kubeconfig, "doctor", "-o", "json"))
    told = [one["what"] for one in found["not-readable"]]
    for part in ("customresourcedefinitions", "leases", "subjectaccessreviews", "secrets", "nodes"):
        assert any(part in what for what in told), part
    assert all("403" in what for what in told)
    assert "program-not-ready" in found, "what may be read is judged"
    archive = tmp_path / "bundle.tar.gz"
    done = koord(kubeconfig, "support-bundle", "-o", str(archive))
    assert done.exit_code == 0, done.output
    held = members(archive)
    assert "objects/apps/v1/deployments.json" in held
    assert "objects/coordination.k8s.io/v1/leases.json" not in held
    assert b"leases.coordination.k8s.io v1: 403" in held["left-out.txt"]


def test_the_bundle_of_an_administrator_has_everything_but_secrets(installed: InstalledPlane, tmp_path: Path) -> None:
    holder = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "holder", "namespace": NAMESPACE},
        "spec": {
            "containers": [
                {
                    "name": "c",
                    "image": "i",
                    "args": [f"--token={MASTER_KEY}"],
                    "env": [{"name": "A", "value": MASTER_KEY}],
                }
            ]
        },
    }
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "mine", "namespace": NAMESPACE},
        "stringData": {"k": MASTER_KEY},
    }
    installed.apply([secret])
    kubectl(
        installed.plane.kubeconfig, "delete", "mutatingwebhookconfiguration,validatingwebhookconfiguration", "--all"
    )
    installed.apply([holder])
    archive = tmp_path / "bundle.tar.gz"
    done = koord(installed.plane.kubeconfig, "support-bundle", "-o", str(archive))
    assert done.exit_code == 0, done.output
    held = members(archive)
    for name in (
        "doctor.json",
        "versions.json",
        "left-out.txt",
        "objects/core/v1/pods.json",
        "objects/core/v1/configmaps.json",
        "objects/rbac.authorization.k8s.io/v1/roles.json",
    ):
        assert name in held
    assert not [name for name in held if "secret" in name]
    hidden = (MASTER_KEY, base64.b64encode(MASTER_KEY.encode()).decode())
    assert [name for name, content in held.items() if any(one.encode() in content for one in hidden)] == []
    versions = json.loads(held["versions.json"])
    assert versions["server"]["gitVersion"].startswith("v1.")
    assert set(versions["koord"]) == {"version", "commit", "tree_state", "date"}
