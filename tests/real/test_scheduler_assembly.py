"""The recorded answers of kube-scheduler to configuration files are still what it says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.scheduler.assembly.config_cases import ACCEPTED, REFUSED
from tests.scheduler.assembly.kube_scheduler import SAID, ask
from tools import assets
from tools.controlplane import ControlPlane

pytestmark = pytest.mark.real


def test_what_was_recorded_is_what_it_says(plane: ControlPlane, tmp_path: Path) -> None:
    binary = assets.folder() / "kube-scheduler"
    if not binary.is_file():
        pytest.skip("no kube-scheduler built: run `python -m tools.assets` first")
    recorded = json.loads(SAID.read_text())
    for name, text in {**ACCEPTED, **REFUSED}.items():
        said = ask(binary, plane.kubeconfig, text, tmp_path)
        assert type(said) is type(recorded[name]), name
        if isinstance(said, dict):
            assert said == recorded[name], name
