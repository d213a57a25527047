"""Recorded outcomes of Koordinator's own koord-manager, where they are at hand: ours must agree with every one.

They are not part of this repository. KOORD_MANAGER_CASES names their folder (runner.py, setup.yaml, cases, expected);
KOORD_MANAGER_CASES_ONLY limits the run to names that match a pattern.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from koord.api.schema import crd_manifests
from tests.real.kubectl import kubectl
from tests.real.manager_process import running
from tools import assets, controlplane

pytestmark = pytest.mark.real

GATES = (
    "NodeMutatingWebhook=true,NodeValidatingWebhook=true,ConfigMapValidatingWebhook=true,"
    "ReservationMutatingWebhook=true,ValidatePodDeviceResource=true,MultiQuotaTree=true"
)
BESIDE = Path(__file__).resolve().parents[3] / "shared" / "manager-cases"


def test_every_recorded_case_agrees(tmp_path: Path) -> None:
    cases = Path(os.environ.get("KOORD_MANAGER_CASES") or BESIDE)
    if not (cases / "runner.py").is_file():
        pytest.skip(f"no recorded cases at {cases}: set KOORD_MANAGER_CASES")
    missing = [name for name in ("etcd", "kube-apiserver") if not (assets.folder() / name).is_file()]
    if missing:
        pytest.skip(f"no {' or '.join(missing)} built: run `python -m tools.assets` first")
    with controlplane.running() as plane:
        crds = tmp_path / "crds"
        crds.mkdir()
        for number, manifest in enumerate(crd_manifests()):
            (crds / f"{number}.json").write_bytes(msgspec.json.encode(manifest))
        for what in (("-f", str(crds)), ("-f", str(cases / "setup.yaml"))):
            said = kubectl(plane.kubeconfig, "apply", "--server-side", "--force-conflicts", *what)
            assert said.code == 0, said.err
        kubectl(plane.kubeconfig, "wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
        with running(
            plane.kubeconfig,
            tmp_path,
            *("--enable-leader-election=false", "--rest-config-qps=300", "--rest-config-burst=500"),
            f"--feature-gates={GATES}",
        ) as manager:
            command = [sys.executable, "-B", str(cases / "runner.py"), "--kubeconfig", str(plane.kubeconfig), "--check"]
            command += ["--admission-url", f"https://127.0.0.1:{manager.webhook_port}"]
            if only := os.environ.get("KOORD_MANAGER_CASES_ONLY"):
                command += ["--only", only]
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1200)
    wrong = [line for line in done.stdout.splitlines() if not line.startswith("ok ")]
    assert done.returncode == 0, "\n".join(wrong[-100:]) + done.stderr[-2000:]
