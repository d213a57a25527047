"""A release of Koordinator's chart moves to koord's and back, by the commands that `koord migrate-from-koordinator`
prints; and the chart's archive of a release is what the folder is.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from koord import __version__
from koord.cli.main import cli
from tests.charts.api_servers import ApiServer, real_server
from tests.charts.helm import CHART, ROOT, run_helm
from tests.charts.koordinator_release import write_koordinator_chart
from tools.release.build import chart_archive

pytestmark = pytest.mark.real

SYSTEM = "/api/v1/namespaces/koordinator-system"
APPS = "/apis/apps/v1/namespaces/koordinator-system"
SECRET = f"{SYSTEM}/secrets/koordinator-webhook-certs"
KOORDLET = f"{APPS}/daemonsets/koordlet"
POD_GROUPS = "/apis/scheduling.sigs.k8s.io/v1alpha1/namespaces/default/podgroups"


def image(server: ApiServer, path: str) -> str:
    found: str = server.request("GET", f"{APPS}/{path}")["spec"]["template"]["spec"]["containers"][0]["image"]
    return found


def run_printed(server: ApiServer, command: str, *more: str) -> None:
    """Run a command of the report that calls Helm, without its waiting: no controller starts pods here."""
    words = shlex.split(command)
    assert words[0] == "helm"
    kept = [str(ROOT / word) if word == "charts/koord" else word for word in words[1:] if word != "--wait"]
    run_helm(*kept, *more, kubeconfig=server.kubeconfig)


def test_a_release_moves_to_koord_and_back(tmp_path: Path) -> None:
    with real_server() as server:
        run_helm("install", "koordinator", str(write_koordinator_chart(tmp_path)), kubeconfig=server.kubeconfig)
        server.wait_until_served(POD_GROUPS)
        gang = {"apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "PodGroup", "metadata": {"name": "gang"}}
        server.request("POST", POD_GROUPS, {**gang, "spec": {"minMember": 2}})
        server.merge(f"{APPS}/deployments/koord-manager", {"spec": {"replicas": 3}})
        values = tmp_path / "values.yaml"
        asked = ["migrate-from-koordinator", "--dry-run", "--values-file", str(values), "-o", "json"]
        done = CliRunner().invoke(cli, [*asked, "--kubeconfig", str(server.kubeconfig)])
        assert done.exit_code == 0, done.output
        report = json.loads(done.stdout)
        assert yaml.safe_load(values.read_text())["manager"]["replicas"] == 3

        certificate = server.request("GET", SECRET)["data"]
        agents = server.request("GET", KOORDLET)
        (keep,) = [one["command"] for one in report["move"] if " annotate secret " in one["command"]]
        assert keep.split()[-3:] == ["koordinator-webhook-certs", "helm.sh/resource-policy=keep", "--overwrite"]
        server.merge(SECRET, {"metadata": {"annotations": {"helm.sh/resource-policy": "keep"}}})
        (upgrade,) = [one["command"] for one in report["move"] if one["command"].startswith("helm ")]
        run_printed(server, upgrade)
        assert image(server, "deployments/koord-manager") == f"registry.example.com/koord:{__version__}"
        assert server.request("GET", f"{APPS}/deployments/koord-manager")["spec"]["replicas"] == 3
        assert image(server, "daemonsets/koordlet") == f"registry.example.com/koord:{__version__}"
        replaced = server.request("GET", KOORDLET)
        assert replaced["metadata"]["uid"] == agents["metadata"]["uid"], "all agents would be replaced at once"
        assert replaced["spec"]["selector"] == agents["spec"]["selector"]
        assert replaced["spec"]["updateStrategy"]["rollingUpdate"]["maxUnavailable"] == "20%"
        assert not server.exists(f"{APPS}/daemonsets/koord-device-daemon")
        assert server.exists(f"{POD_GROUPS}/gang")
        assert server.request("GET", SECRET)["data"] == certificate

        restoring, rollback = (one["command"] for one in report["back"])
        assert restoring == "koord restore-nodes --koordlet-only --namespace koordinator-system"
        server.request("DELETE", KOORDLET)  # which is how that command ends, where there are nodes
        run_printed(server, rollback)
        assert image(server, "deployments/koord-manager") == "registry.example/koordinator-sh/koord-manager:v1.8.0"
        assert image(server, "daemonsets/koordlet") == "registry.example/koordinator-sh/koordlet:v1.8.0"
        assert server.exists(f"{APPS}/daemonsets/koord-device-daemon")
        assert server.exists(f"{POD_GROUPS}/gang")
        assert server.request("GET", SECRET)["data"] == certificate


def test_the_archive_of_a_release_renders_as_the_folder_does(tmp_path: Path) -> None:
    name, content = chart_archive(ROOT, 9)
    (tmp_path / name).write_bytes(content)
    archived = run_helm("template", "koord", str(tmp_path / name), "--namespace", "default")
    assert archived == run_helm("template", "koord", str(CHART), "--namespace", "default")
    shown = yaml.safe_load(run_helm("show", "chart", str(tmp_path / name)))
    assert (shown["version"], shown["appVersion"]) == (__version__, __version__)
