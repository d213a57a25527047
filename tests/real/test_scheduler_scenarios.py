"""Recorded outcomes of Koordinator's own scheduler, where they are at hand: ours must agree with every one it can run.

They are not part of this repository. KOORD_SCHEDULER_CASES names their folder (runner.py, cfg, scenarios, expected).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from koord.api.schema import crd_manifests
from koord.scheduler.configuration.completed_config import CompletedConfig
from koord.scheduler.configuration.config_file import dump_configuration, load_configuration
from koord.scheduler.configuration.plugin_selection import without_unsupported_plugins
from koord.scheduler.plugins.registry import REGISTRY
from tests.real.kubectl import kubectl
from tests.real.scheduler_process import running
from tools import assets, controlplane

pytestmark = pytest.mark.real

BESIDE = Path(__file__).resolve().parents[3] / "shared" / "scenarios"
# By plugin, the cases that it makes possible; "" are those that need none but Kubernetes' own.
PATTERNS = {
    "": ("native-*",),
    "LoadAwareScheduling": ("load-*", "batch-*", "mid-*"),
    "ElasticQuota": ("quota-*",),
    "NodeNUMAResource": ("numa-*",),
    "DeviceShare": ("device-*",),
    "Coscheduling": ("gang-*",),
    "Reservation": ("resv-*",),
}


def test_every_recorded_case_agrees(tmp_path: Path) -> None:
    cases = Path(os.environ.get("KOORD_SCHEDULER_CASES") or BESIDE)
    if not (cases / "runner.py").is_file():
        pytest.skip(f"no recorded cases at {cases}: set KOORD_SCHEDULER_CASES")
    missing = [name for name in ("etcd", "kube-apiserver") if not (assets.folder() / name).is_file()]
    if missing:
        pytest.skip(f"no {' or '.join(missing)} built: run `python -m tools.assets` first")
    given = load_configuration((cases / "cfg" / "koord.yaml").read_text())
    assert not isinstance(given, list), given
    config, left_out = without_unsupported_plugins(given)
    assembly = CompletedConfig.complete(config, REGISTRY)
    assert isinstance(assembly, CompletedConfig), assembly
    patterns = [pattern for plugin, held in PATTERNS.items() if plugin not in left_out for pattern in held]
    with controlplane.running() as plane:
        crds = yaml.safe_dump_all(crd_manifests())
        said = kubectl(plane.kubeconfig, "apply", "--server-side", "-f", "-", stdin=crds)
        assert said.code == 0, said.err
        kubectl(plane.kubeconfig, "wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
        kubectl(plane.kubeconfig, "create", "namespace", "koordinator-system")
        with running(plane.kubeconfig, tmp_path, config=yaml.safe_load(dump_configuration(assembly)), qps=10000):
            report = tmp_path / "report.json"
            command = [sys.executable, "-B", str(cases / "runner.py"), "--kubeconfig", str(plane.kubeconfig)]
            command += ["--check", "--messages", "reasons", "--report", str(report)]
            command += [word for pattern in patterns for word in ("--only", pattern)]
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, f"{done.stdout[-6000:]}\n{done.stderr[-2000:]}"
    assert len(json.loads(report.read_text())) > 0
