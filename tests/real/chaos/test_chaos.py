"""koord's programs on a real kube-apiserver and etcd while processes, servers and networks fail: what must hold, holds.

Two minutes in a usual run; KOORD_CHAOS_MINUTES makes it as long as wanted (`make soak`), KOORD_CHAOS_SEED another
run. The figures are written as JSON to KOORD_CHAOS_FIGURES, or to the test's folder.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.real.chaos.chaos_run import ChaosRun
from tools import assets, controlplane
from tools.controlplane import ControlPlane

pytestmark = pytest.mark.real

MINUTES = float(os.environ.get("KOORD_CHAOS_MINUTES", "2"))
SEEDS = [int(os.environ.get("KOORD_CHAOS_SEED", "1"))]
POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {
            "level": "Metadata",
            "verbs": ["create"],
            "resources": [{"group": "", "resources": ["pods", "pods/binding", "pods/eviction"]}],
        },
        {"level": "None"},
    ],
}
Json = dict[str, Any]


@pytest.fixture
def control_plane(tmp_path: Path) -> Iterator[ControlPlane]:
    missing = [name for name in ("etcd", "kube-apiserver") if not (assets.folder() / name).is_file()]
    if missing:
        pytest.skip(f"no {' or '.join(missing)} built: run `python -m tools.assets` first")
    (tmp_path / "policy.json").write_text(json.dumps(POLICY))
    audit = ["--audit-policy-file", str(tmp_path / "policy.json"), "--audit-log-mode", "blocking"]
    with controlplane.running([*audit, "--audit-log-path", str(tmp_path / "audit.log")]) as plane:
        yield plane


def write_figures(figures: Json, folder: Path) -> None:
    file = Path(os.environ.get("KOORD_CHAOS_FIGURES") or folder / "figures.json")
    file.write_text(json.dumps(figures, indent=2))


@pytest.mark.parametrize("seed", SEEDS)
async def test_what_must_hold_holds(control_plane: ControlPlane, tmp_path: Path, seed: int) -> None:
    chaos = ChaosRun(control_plane, tmp_path, seed)
    began = time.monotonic()
    try:
        await chaos.prepare()
        await chaos.run(60 * MINUTES)
    finally:
        figures = chaos.figures(time.monotonic() - began)
        write_figures(figures, tmp_path)
        await chaos.close()
    assert not figures["violations"], "\n".join(figures["violations"])
    assert figures["pods_created"] > 10 * MINUTES
    assert sum(figures["faults"].values()) > 0
    looked_at = ("pods_seen", "webhook_handshakes", "migrations_succeeded")  # or nothing was judged
    assert min(figures[name] for name in figures if name.startswith(looked_at)) > 0
    assert figures["webhook_certificates"] > 1 or not figures["faults"].get("replace-certificate")
