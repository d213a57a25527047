"""Our reading of KubeSchedulerConfiguration against the real kube-scheduler's, which prints what it made of a file."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from koord.api.config.decode import decode_strict
from koord.api.config.scheduler.configuration import KIND, KubeSchedulerConfiguration, defaulted, typed_args, validate
from koord.api.config.scheduler.in_tree_args import API_VERSION
from koord.api.model import to_dict
from tools import assets
from tools.controlplane import ControlPlane

pytestmark = pytest.mark.real


@pytest.fixture
def binary() -> Path:
    path = assets.folder() / "kube-scheduler"
    if not path.is_file():
        pytest.skip("no kube-scheduler built: run `python -m tools.assets` first")
    return path


def theirs(binary: Path, plane: ControlPlane, folder: Path, document: dict[str, Any]) -> dict[str, Any] | str:
    """The completed configuration, or the refusal."""
    given, written = folder / "given.yaml", folder / "written.yaml"
    client = {"clientConnection": {"kubeconfig": str(plane.kubeconfig)}, "leaderElection": {"leaderElect": False}}
    given.write_text(yaml.safe_dump({"apiVersion": API_VERSION, "kind": KIND, **client, **document}))
    ran = subprocess.run(
        [str(binary), "--config", str(given), "--write-config-to", str(written), "--secure-port", "0"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if ran.returncode != 0:
        return ran.stderr
    completed: dict[str, Any] = yaml.safe_load(written.read_text())
    return completed


def ours(document: dict[str, Any]) -> KubeSchedulerConfiguration:
    given = decode_strict(document, KubeSchedulerConfiguration)
    assert isinstance(given, KubeSchedulerConfiguration), given
    return defaulted(given)


def plugin_names(plugins: dict[str, Any]) -> dict[str, list[tuple[str, int]]]:
    """Enabled plugins with weight by point; points without any are left out."""
    return {
        point: [(p["name"], p.get("weight") or 0) for p in held["enabled"]]
        for point, held in plugins.items()
        if held.get("enabled")
    }


PROFILES = [
    pytest.param({}, id="empty"),
    pytest.param({"plugins": {"multiPoint": {"disabled": [{"name": "ImageLocality"}]}}}, id="one-default-off"),
    pytest.param(
        {
            "plugins": {
                "multiPoint": {
                    "disabled": [{"name": "*"}],
                    "enabled": [{"name": "PrioritySort"}, {"name": "NodeName"}, {"name": "DefaultBinder"}],
                }
            }
        },
        id="only-these",
    ),
    pytest.param(
        {"plugins": {"multiPoint": {"enabled": [{"name": "TaintToleration", "weight": 9}]}}}, id="new-weight-in-place"
    ),
    pytest.param(
        {"plugins": {"score": {"enabled": [{"name": "NodeResourcesFit", "weight": 7}], "disabled": [{"name": "*"}]}}},
        id="one-point",
    ),
]


@pytest.mark.parametrize("profile", PROFILES)
def test_plugins_are_merged_alike(binary: Path, plane: ControlPlane, tmp_path: Path, profile: dict[str, Any]) -> None:
    document = {"profiles": [{"schedulerName": "s", **profile}]}
    real = theirs(binary, plane, tmp_path, document)
    assert isinstance(real, dict), real
    made = to_dict(ours(document))["profiles"][0]["plugins"]
    made.pop("preBind", None)  # where Koordinator adds a plugin of its own
    assert plugin_names(made) == plugin_names(real["profiles"][0]["plugins"])


def test_defaults_are_theirs(binary: Path, plane: ControlPlane, tmp_path: Path) -> None:
    real = theirs(binary, plane, tmp_path, {})
    assert isinstance(real, dict), real
    for entry in real["profiles"][0]["pluginConfig"]:
        args = typed_args(entry["name"], None)
        assert not isinstance(args, list), args
        wanted = {k: v for k, v in entry["args"].items() if v is not False}
        assert {"apiVersion": API_VERSION, "kind": f"{entry['name']}Args", **to_dict(args)} == wanted
    made = to_dict(ours({}))
    for field in ("parallelism", "podInitialBackoffSeconds", "podMaxBackoffSeconds", "enableContentionProfiling"):
        assert made[field] == real[field]
    for field in ("leaseDuration", "renewDeadline", "retryPeriod", "resourceLock"):
        assert made["leaderElection"][field] == real["leaderElection"][field]


@pytest.mark.parametrize(
    ("plugin", "args"),
    [
        ("InterPodAffinity", {"hardPodAffinityWeight": 101}),
        ("VolumeBinding", {"bindTimeoutSeconds": -1}),
        ("PodTopologySpread", {"defaultingType": "Some"}),
        ("PodTopologySpread", {"defaultConstraints": [{"maxSkew": 1, "topologyKey": "z", "whenUnsatisfiable": "x"}]}),
        ("DefaultPreemption", {"minCandidateNodesPercentage": 101}),
        ("DefaultPreemption", {"minCandidateNodesPercentage": 0, "minCandidateNodesAbsolute": 0}),
        ("NodeResourcesFit", {"scoringStrategy": {"type": "BalancedAllocation", "resources": []}}),
        ("NodeResourcesFit", {"scoringStrategy": {"type": "RequestedToCapacityRatio"}}),
        ("NodeResourcesFit", {"scoringStrategy": {"resources": [{"name": "cpu", "weight": 101}]}}),
        ("NodeResourcesFit", {"ignoredResourceGroups": ["a/b"]}),
        ("NodeResourcesBalancedAllocation", {"resources": [{"name": "cpu", "weight": -1}]}),
        ("NodeResourcesFit", {"scoringStrategyy": {}}),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_both_refuse(binary: Path, plane: ControlPlane, tmp_path: Path, plugin: str, args: dict[str, Any]) -> None:
    document = {"profiles": [{"schedulerName": "s", "pluginConfig": [{"name": plugin, "args": args}]}]}
    assert isinstance(theirs(binary, plane, tmp_path, document), str)
    assert validate(ours(document)) != []


@pytest.mark.parametrize(
    ("plugin", "args"),
    [
        ("NodeResourcesFit", {"scoringStrategy": {"type": "MostAllocated", "resources": [{"name": "cpu"}]}}),
        (
            "NodeResourcesFit",
            {
                "scoringStrategy": {
                    "type": "RequestedToCapacityRatio",
                    "requestedToCapacityRatio": {
                        "shape": [{"utilization": 0, "score": 0}, {"utilization": 100, "score": 10}]
                    },
                }
            },
        ),
        (
            "PodTopologySpread",
            {
                "defaultingType": "List",
                "defaultConstraints": [{"maxSkew": 2, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}],
            },
        ),
        ("InterPodAffinity", {"hardPodAffinityWeight": 0}),
        ("NodeResourcesBalancedAllocation", {"resources": [{"name": "nvidia.com/gpu"}]}),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_both_accept_and_complete_alike(
    binary: Path, plane: ControlPlane, tmp_path: Path, plugin: str, args: dict[str, Any]
) -> None:
    document = {"profiles": [{"schedulerName": "s", "pluginConfig": [{"name": plugin, "args": args}]}]}
    real = theirs(binary, plane, tmp_path, document)
    assert isinstance(real, dict), real
    (written,) = [e["args"] for e in real["profiles"][0]["pluginConfig"] if e["name"] == plugin]
    made = typed_args(plugin, args)
    assert not isinstance(made, list), made
    wanted = {k: v for k, v in written.items() if v is not False and k not in ("apiVersion", "kind")}
    assert to_dict(made) == wanted
