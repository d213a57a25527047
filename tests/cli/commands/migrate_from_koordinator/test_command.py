"""`koord migrate-from-koordinator` as a user runs it, on a cluster with the objects of Koordinator's chart."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from koord.api.kubernetes.builtin_kinds import DEPLOYMENTS
from koord.api.kubernetes.meta import Object
from koord.api.kubernetes.resource import Resource
from koord.cli.main import cli
from koord.kube.client.typed_client import Client
from koord.kube.config.loader import load_connection
from koord.kube.transport.api_error import unwrap
from koord.kube.transport.http import HttpTransport
from koord.telemetry.clock import WallClock
from tests.koord_up_process import koord_up
from tests.koordinator_installation import PREDICTIONS, koordinator_objects

PLURALS = {"PriorityClass": "priorityclasses"}


def koord(kubeconfig: Path, *args: str) -> Result:
    return CliRunner().invoke(cli, ["migrate-from-koordinator", *args, "--kubeconfig", str(kubeconfig)])


@pytest.fixture(scope="module")
def cluster() -> Iterator[Path]:
    """A cluster with Koordinator's objects, on which no controller starts pods; its manager has three replicas."""

    async def install(kubeconfig: Path) -> None:
        clock = WallClock()
        transport = HttpTransport(load_connection(os.environ, clock, path=str(kubeconfig)), clock)
        async with Client(transport, clock=clock, qps=0, burst=0) as client:
            for one in koordinator_objects():
                group, _, version = str(one["apiVersion"]).rpartition("/")
                resource = Resource(
                    group=group,
                    version=version,
                    kind=one["kind"],
                    plural=PLURALS.get(one["kind"], f"{one['kind'].lower()}s"),
                    namespaced="namespace" in one["metadata"],
                    model=Object,
                )
                unwrap(await client.dynamic.apply(resource, one, field_manager="test", force=True))
            three = {"spec": {"replicas": 3}}
            unwrap(await client.patch(DEPLOYMENTS, "koord-manager", three, "koordinator-system", kind="merge"))

    with koord_up("--nodes", "1", "--components", "nodes") as running:
        asyncio.run(install(running.kubeconfig))
        yield running.kubeconfig


def test_the_report_and_the_values(cluster: Path, tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    done = koord(cluster, "--dry-run", "--values-file", str(values), "-o", "json")
    assert (done.exit_code, done.stderr) == (0, "")
    report = json.loads(done.stdout)
    assert report["release"] == {"name": "koordinator", "namespace": "default"}
    folders = {"predictionCheckpointDir": PREDICTIONS}
    assert report["values"] == {"manager": {"replicas": 3}, "koordlet": {"hostDirs": folders}}
    assert yaml.safe_load(values.read_text()) == report["values"]
    assert {one["outcome"] for one in report["objects"]} == {"replaced", "removed"}
    assert any(str(values) in one["command"] for one in report["move"])


def test_without_dry_run_it_says_what_to_run_and_writes_nothing(cluster: Path, tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    done = koord(cluster, "--values-file", str(values))
    assert (done.exit_code, done.stdout) == (2, "")
    assert "this command changes nothing: the move is `helm upgrade koordinator charts/koord" in done.stderr
    assert not values.exists()


def test_a_file_that_cannot_be_written_is_one_line(cluster: Path, tmp_path: Path) -> None:
    done = koord(cluster, "--dry-run", "--values-file", str(tmp_path / "none" / "values.yaml"))
    assert done.exit_code == 2
    assert done.stderr.endswith("values.yaml: No such file or directory\n")


def test_a_cluster_that_cannot_be_asked_is_exit_code_2(cluster: Path, tmp_path: Path) -> None:
    config = yaml.safe_load(cluster.read_text())
    config["users"][0]["user"] = {"token": "wrong"}
    path = tmp_path / "wrong"
    path.write_text(yaml.safe_dump(config))
    done = koord(path, "--dry-run")
    assert done.exit_code == 2
    assert done.stderr.startswith("koord: the API server does not accept the credentials")
