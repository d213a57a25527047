"""This module runs the Helm that `python -m tools.assets helm` builds, on the chart of this repository."""

from __future__ import annotations

import os
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tools import assets

Obj = dict[str, Any]

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "koord"
VALUES = Path(__file__).parent / "values"
RELEASE, NAMESPACE = "koord", "default"
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # definitions are long, and the loader in Python is slow


class HelmFailed(Exception):
    """Helm ended with an error; the text is what it printed."""


def helm_binary() -> Path:
    return assets.helm_folder() / "helm"


def run_helm(*args: str, kubeconfig: Path | None = None) -> str:
    """Run Helm with no settings, caches or cluster of this machine but the given one."""
    with tempfile.TemporaryDirectory() as home:
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": home,
            "KUBECONFIG": str(kubeconfig or Path(home) / "none"),
        }
        done = subprocess.run(
            [helm_binary(), *args], env=environment, capture_output=True, text=True, timeout=300, check=False
        )
    if done.returncode:
        raise HelmFailed(done.stderr or done.stdout)
    return done.stdout


def render(*args: str, release: str = RELEASE, namespace: str = NAMESPACE) -> list[Obj]:
    """Return the objects that a release would consist of."""
    return [obj for obj in yaml.load_all(_template(release, namespace, args), Loader=_LOADER) if obj]


@cache
def _template(release: str, namespace: str, args: tuple[str, ...]) -> str:
    return run_helm("template", release, str(CHART), "--namespace", namespace, *args)


def values_file(name: str) -> tuple[str, str]:
    return "--values", str(VALUES / f"{name}.yaml")


def named(objects: list[Obj], kind: str, name: str) -> Obj:
    (found,) = [one for one in objects if (one["kind"], one["metadata"]["name"]) == (kind, name)]
    return found


def pod_specs(objects: list[Obj]) -> dict[str, Obj]:
    """Return the pod template's spec of each workload by its name."""
    return {
        one["metadata"]["name"]: one["spec"]["template"]["spec"]
        for one in objects
        if one["kind"] in ("Deployment", "DaemonSet")
    }
