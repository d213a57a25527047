"""What the real kube-scheduler makes of a configuration file. As a program it records that for all cases:

python -m tests.scheduler.assembly.kube_scheduler
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import yaml

from tests.scheduler.configuration.config_cases import ACCEPTED, KUBECONFIG, REFUSED

SAID = Path(__file__).parent / "kube_scheduler_said.json"


def ask(binary: Path, kubeconfig: Path, text: str, folder: Path) -> dict[str, Any] | str:
    """Return the completed configuration, or the refusal."""
    ran = _run(binary, kubeconfig, text, folder)
    if ran.returncode:
        found = re.search(r'"command failed" err=(.*)', ran.stderr, re.DOTALL)
        assert found, ran.stderr
        return " ".join(found[1].split())
    written = (folder / "written.yaml").read_text()
    tree: dict[str, Any] = yaml.safe_load(written.replace(str(kubeconfig), KUBECONFIG))
    return tree


def listed(binary: Path, kubeconfig: Path, text: str, folder: Path) -> dict[str, list[tuple[str, int]]] | None:
    """Return the plugins that it runs at each point of the one profile, with their weights; None when it refuses."""
    ran = _run(binary, kubeconfig, text, folder)
    if ran.returncode:
        return None
    found = re.search(r"starts to work with those plugins.* Plugins=(.*)", ran.stderr)
    assert found, ran.stderr
    points: dict[str, Any] = json.loads(found[1])
    return {
        point[0].lower() + point[1:]: [(plugin["Name"], plugin["Weight"]) for plugin in held["Enabled"] or ()]
        for point, held in points.items()
        if point != "MultiPoint"  # always empty here: it has been expanded
    }


def _run(binary: Path, kubeconfig: Path, text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    given, written = folder / "given.yaml", folder / "written.yaml"
    given.write_text(text.replace(KUBECONFIG, str(kubeconfig)))
    command = [str(binary), "--config", str(given), "--write-config-to", str(written), "--secure-port", "0", "-v", "2"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def main() -> None:
    from tools import assets
    from tools.controlplane import running

    with running() as plane, tempfile.TemporaryDirectory() as folder:
        said = {
            name: ask(assets.folder() / "kube-scheduler", plane.kubeconfig, text, Path(folder))
            for name, text in {**ACCEPTED, **REFUSED}.items()
        }
    assert {name for name, answer in said.items() if isinstance(answer, dict)} == set(ACCEPTED), said
    lines = (
        f"{json.dumps(name)}: {json.dumps(said[name], sort_keys=True, separators=(',', ':'))}" for name in sorted(said)
    )
    SAID.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
