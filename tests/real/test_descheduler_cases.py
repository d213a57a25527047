"""Recorded outcomes of Koordinator's own koord-descheduler, where they are at hand: ours must agree with every one.

They are not part of this repository. KOORD_DESCHEDULER_CASES names their folder (runner.py, cases, expected);
KOORD_DESCHEDULER_CASES_ONLY limits the run to names that match a pattern.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from koord.api.schema import crd_manifests
from tests.real.kubectl import kubectl
from tools import assets, controlplane

pytestmark = pytest.mark.real

BESIDE = Path(__file__).resolve().parents[3] / "shared" / "descheduler-cases"
CLUSTERS = 2  # so many cases at a time: most of a case is waiting


def test_every_recorded_case_agrees(tmp_path: Path) -> None:
    cases = Path(os.environ.get("KOORD_DESCHEDULER_CASES") or BESIDE)
    if not (cases / "runner.py").is_file():
        pytest.skip(f"no recorded cases at {cases}: set KOORD_DESCHEDULER_CASES")
    missing = [name for name in ("etcd", "kube-apiserver") if not (assets.folder() / name).is_file()]
    if missing:
        pytest.skip(f"no {' or '.join(missing)} built: run `python -m tools.assets` first")
    programs = Path(sys.executable).parent
    with ExitStack() as planes:
        kubeconfigs = []
        for _ in range(CLUSTERS):
            plane = planes.enter_context(controlplane.running())
            crds = yaml.safe_dump_all(crd_manifests())
            said = kubectl(plane.kubeconfig, "apply", "--server-side", "-f", "-", stdin=crds)
            assert said.code == 0, said.err
            kubectl(plane.kubeconfig, "wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
            kubectl(plane.kubeconfig, "create", "namespace", "koordinator-system")
            kubeconfigs.append(str(plane.kubeconfig))
        command = [sys.executable, "-B", str(cases / "runner.py"), "--kubeconfig", ",".join(kubeconfigs), "--check"]
        command += ["--workdir", str(tmp_path / "work"), "--slow", "2"]
        command += ["--start-cmd", f"{programs / 'koord-descheduler'} --config {{config}} --secure-port 0"]
        flags = "--secure-port 0 --port 0 --leader-elect=false"
        command += ["--scheduler-cmd", f"{programs / 'koord-scheduler'} --config {{config}} {flags}"]
        if only := os.environ.get("KOORD_DESCHEDULER_CASES_ONLY"):
            command += ["--only", only]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1200)
        if again := _other_order(done.stdout):
            command += [word for name in again for word in ("--only", name)]
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    wrong = [line for line in done.stdout.splitlines() if not line.startswith("PASS ")]
    assert done.returncode == 0, "\n".join(wrong[-100:]) + done.stderr[-2000:]


def _other_order(report: str) -> list[str]:
    """Return the failed cases, if all that differs in any of them is the order of evictions.

    The newest job goes first, by whole seconds: two jobs that are created one after the other change places when a
    second begins between them. That is as recorded, and chance, so such a case is tried once more.
    """
    failed: list[str] = []
    differences: list[str] = []
    is_failed = False
    for line in report.splitlines():
        if not line.startswith(" "):
            is_failed = line.startswith("FAIL ")
            failed += [line.split()[1]] if is_failed else []
        elif is_failed:
            differences.append(line)
    return failed if all("|deleted|" in line for line in differences) else []
