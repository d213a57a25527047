"""`koord deschedule --dry-run` on files: the same pods that a round would choose, and why the others stay."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from koord.cli.main import cli

OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "web", "controller": True}
ROOM = {"cpu": "8", "memory": "32Gi", "pods": "110"}


def node(name: str) -> dict[str, Any]:
    status = {"allocatable": ROOM, "capacity": ROOM, "conditions": [{"type": "Ready", "status": "True"}]}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": status}


def pod(name: str, on: str, **spec: Any) -> dict[str, Any]:
    meta = {"name": name, "namespace": "default", "uid": name, "ownerReferences": [OWNER]}
    whole = {"nodeName": on, "schedulerName": "koord-scheduler", "containers": [{"name": "c", "image": "i"}], **spec}
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": whole, "status": status}


def metric(name: str, used: dict[str, str]) -> dict[str, Any]:
    nothing = {"resources": {"cpu": "0", "memory": "0"}}
    pods = [{"namespace": "default", "name": p, "podUsage": {"resources": {"cpu": cpu}}} for p, cpu in used.items()]
    status = {
        "updateTime": "2020-01-01T00:00:00Z",
        "nodeMetric": {"nodeUsage": nothing, "systemUsage": nothing},
        "podsMetric": pods,
    }
    return {
        "apiVersion": "slo.koordinator.sh/v1alpha1",
        "kind": "NodeMetric",
        "metadata": {"name": name},
        "status": status,
    }


def cluster() -> list[dict[str, Any]]:
    """busy is at 7 of 8 cpu, idle at none, silent never reported."""
    replica_set = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {"name": "web", "namespace": "default", "uid": "web"},
        "spec": {"replicas": 20, "selector": {"matchLabels": {"app": "web"}}},
    }
    stuck = pod("stuck", "busy", nodeSelector={"disk": "fast"})
    pods = [*(pod(f"web-{i}", "busy") for i in range(5)), stuck]
    used = {**{f"web-{i}": "1" for i in range(5)}, "stuck": "2"}
    nodes = [node("busy"), node("idle"), node("silent")]
    return [*nodes, *pods, replica_set, metric("busy", used), metric("idle", {})]


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    file = tmp_path / "cluster.yaml"
    file.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": cluster()}))
    return file


def deschedule(*args: str) -> Result:
    return CliRunner().invoke(cli, ["deschedule", *args])


def decided(*args: str) -> dict[str, Any]:
    result = deschedule("--dry-run", "-o", "json", *args)
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.output)
    return found


def test_without_dry_run_it_refuses_and_says_who_does_real_ones(snapshot: Path) -> None:
    result = deschedule("--snapshot", str(snapshot))
    assert result.exit_code == 1
    assert "add --dry-run" in result.stderr
    assert "koord-descheduler" in result.stderr


def test_what_would_move_where_and_why(snapshot: Path) -> None:
    """7 of 8 cpu and at most 6: one pod of one cpu goes to the only node with room."""
    found = decided("--snapshot", str(snapshot), "--plugin", "LowNodeLoad")
    (move,) = found["round"]["proposals"]
    assert (move["node"], move["target"], move["plugin"]) == ("busy", "idle", "LowNodeLoad")
    assert move["reason"] == "node is overutilized, node cpu usage(87.50%)>threshold(75.00%)"
    assert {"node": "silent", "plugin": "LowNodeLoad", "why": "it has no NodeMetric"} in found["round"]["left_out"]
    assert {one["node"]: one["standing"] for one in found["pools"][0]["nodes"]} == {
        "busy": "too full",
        "idle": "has room",
    }


def test_a_page_for_people(snapshot: Path) -> None:
    result = deschedule("--dry-run", "--snapshot", str(snapshot), "--plugin", "LowNodeLoad")
    assert result.exit_code == 0, result.output
    assert "A dry run over 3 nodes and 6 pods. Nothing is changed." in result.output
    assert "Every full node counts as certain" in result.output
    assert "LowNodeLoad would move 1 pod:" in result.output
    assert "87.5 (45..75)" in result.output
    assert "it has no NodeMetric" in result.output
    assert "as of          2020-01-01 00:00:00 UTC" in result.output, "reports were fresh when the file was made"


def test_a_first_round_is_not_certain_of_anything(snapshot: Path) -> None:
    found = decided("--snapshot", str(snapshot), "--plugin", "LowNodeLoad", "--no-certain")
    assert found["round"]["proposals"] == []
    assert found["pools"][0]["stops"] == "no node has been too full for long enough"


def test_a_folder_of_files_is_one_snapshot(tmp_path: Path, snapshot: Path) -> None:
    folder = tmp_path / "parts"
    folder.mkdir()
    for number, each in enumerate(cluster()):
        (folder / f"{number}.json").write_text(json.dumps(each))
    whole = decided("--snapshot", str(snapshot), "--plugin", "LowNodeLoad")
    parts = decided("--snapshot", str(folder), "--plugin", "LowNodeLoad")
    assert len(parts["round"]["proposals"]) == len(whole["round"]["proposals"]) == 1
    assert parts["pools"] == whole["pools"]


def config(tmp_path: Path, args: dict[str, Any], **document: Any) -> str:
    profile = {
        "plugins": {"balance": {"enabled": [{"name": "LowNodeLoad"}]}},
        "pluginConfig": [{"name": "LowNodeLoad", "args": args}],
    }
    file = tmp_path / "config.yaml"
    whole = {"apiVersion": "descheduler/v1alpha2", "kind": "DeschedulerConfiguration", "profiles": [profile]}
    file.write_text(yaml.safe_dump({**whole, **document}))
    return str(file)


def test_a_configuration_of_ones_own_with_its_pools_and_limits(tmp_path: Path, snapshot: Path) -> None:
    """Down to 2 of 8 cpu: five of one cpu would have to go, two may at once from one node."""
    args = {"lowThresholds": {"cpu": 10}, "highThresholds": {"cpu": 25}, "nodePools": [{"name": "other"}]}
    found = decided("--snapshot", str(snapshot), "--config", config(tmp_path, args))
    assert found["configuration"].endswith("config.yaml")
    assert len(found["round"]["proposals"]) == 2
    whys = {one["why"] for one in found["round"]["passed_over"]}
    assert any("2 pods of node busy are migrating" in why for why in whys), whys
    only = decided("--snapshot", str(snapshot), "--config", config(tmp_path, args, maxNoOfPodsToEvictTotal=1))
    assert len(only["round"]["proposals"]) == 1
    assert {one["by"] for one in only["round"]["refusals"]} == {"limits"}


def test_a_paused_plugin_is_told_of(tmp_path: Path, snapshot: Path) -> None:
    args = {"paused": True, "lowThresholds": {"cpu": 10}, "highThresholds": {"cpu": 25}}
    found = decided("--snapshot", str(snapshot), "--config", config(tmp_path, args))
    assert "LowNodeLoad is paused by its arguments and proposes nothing." in found["notes"]
    assert found["round"]["proposals"] == []


def test_a_configuration_that_proposes_nothing_says_how_to_ask(snapshot: Path) -> None:
    found = decided("--snapshot", str(snapshot))
    assert found["plugins"] == []
    assert any("--plugin" in note for note in found["notes"])


@pytest.mark.parametrize(
    ("args", "line"),
    [
        pytest.param(("--plugin", "Nope"), 'DeschedulePlugin "Nope" does not exist', id="unknown-plugin"),
        pytest.param(("--plugin", "DefaultEvictor"), "neither deschedules nor balances", id="a-plugin-that-moves-none"),
        pytest.param(("--plugin", "PodLifeTime"), "maxPodLifeTimeSeconds", id="a-plugin-without-arguments"),
        pytest.param(("--config", "/nowhere"), "open /nowhere: no such file", id="missing-config"),
        pytest.param(("--save", "x"), "--save needs a live cluster", id="nothing-to-save"),
    ],
)
def test_bad_input_is_one_line(snapshot: Path, args: tuple[str, ...], line: str) -> None:
    result = deschedule("--dry-run", "--snapshot", str(snapshot), *args)
    assert result.exit_code == 1
    assert line in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_a_missing_snapshot_is_one_line(tmp_path: Path) -> None:
    for place, line in ((tmp_path / "none", "cannot read"), (tmp_path, "there is no .yaml or .json file in it")):
        result = deschedule("--dry-run", "--snapshot", str(place))
        assert result.exit_code == 1
        assert line in result.stderr
