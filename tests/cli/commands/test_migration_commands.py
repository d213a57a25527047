"""`koord migrate`, `koord migrations` and `koord deschedule` as people run them, against one `koord up`."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from koord.api.model import to_dict
from koord.cli import scheduler_setup
from koord.cli.commands.migration import migration_blocker, schedulers_with_reservations
from koord.cli.main import cli
from tests.koord_up_process import KoordUpProcess, koord_up


def deployment(name: str, replicas: int, scheduler: str = "koord-scheduler") -> dict[str, Any]:
    labels = {"app": name}
    container = {"name": "c", "image": "x", "resources": {"requests": {"cpu": "1"}}}
    template = {"metadata": {"labels": labels}, "spec": {"schedulerName": scheduler, "containers": [container]}}
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}


def koord(running: KoordUpProcess, *args: str) -> Result:
    return CliRunner().invoke(cli, [*args, "--kubeconfig", str(running.kubeconfig)])


def kubectl(running: KoordUpProcess, *args: str, given: list[dict[str, Any]] | None = None) -> str:
    command = ["kubectl", "--kubeconfig", str(running.kubeconfig), *args]
    text = yaml.safe_dump_all(given) if given is not None else None
    done = subprocess.run(command, capture_output=True, text=True, input=text, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def running() -> Iterator[KoordUpProcess]:
    with koord_up("--nodes", "3") as cluster:
        made = [deployment("web", 2), deployment("lone", 1), deployment("other", 2, "default-scheduler")]
        kubectl(cluster, "create", "-f", "-", given=made)
        for one in made:
            kubectl(cluster, "rollout", "status", f"deployment/{one['metadata']['name']}", "--timeout=60s")
        yield cluster


def first_pod(running: KoordUpProcess, app: str) -> tuple[str, str]:
    """Its name and its node."""
    listed = json.loads(kubectl(running, "get", "pods", "-l", f"app={app}", "-o", "json"))["items"]
    return listed[0]["metadata"]["name"], listed[0]["spec"]["nodeName"]


def listed(running: KoordUpProcess) -> dict[str, dict[str, Any]]:
    done = koord(running, "migrations", "-o", "json")
    assert done.exit_code == 0, done.stderr
    return {one["name"]: one for one in json.loads(done.stdout)}


def test_to_a_named_node_after_approval(running: KoordUpProcess) -> None:
    pod, node = first_pod(running, "web")
    target = next(f"node-{i}" for i in range(3) if f"node-{i}" != node)
    done = koord(running, "migrate", "pod", f"default/{pod}", "--to", target, "--paused", "--reason", "a new rack")
    assert done.exit_code == 0, done.stderr
    job = done.stdout.split()[1]
    assert f"koord migrate approve {job}" in done.stdout
    waiting = listed(running)[job]
    assert (waiting["blocked"], waiting["target"], waiting["source"]) == ("approval: it is paused", target, node)
    assert (waiting["asked_by"], waiting["reason"]) == ("a person", "a new rack")
    assert koord(running, "migrate", "approve", job).stdout == f"{job} approved\n"
    kubectl(running, "wait", "--for=jsonpath={.status.phase}=Succeeded", f"pmj/{job}", "--timeout=60s")
    over = listed(running)[job]
    assert over["target"] == target
    space, _, successor = over["new_pod"].partition("/")
    where = kubectl(running, "get", "pod", "-n", space, successor, "-o", "jsonpath={.spec.nodeName}")
    assert where == target
    shown = koord(running, "migrations", job).stdout
    assert f"done: {over['new_pod']} lives there" in shown
    assert job in koord(running, "migrations").stdout
    assert job not in koord(running, "migrations", "--active").stdout
    again = koord(running, "migrate", "approve", job)
    assert again.stderr == f"koord: {job} has ended: Succeeded\n"
    told = koord(running, "explain", "eviction", f"default/{pod}").stdout
    assert f"koord-migrate on {node}: evicted default/{pod}" in told
    assert "reason:         a new rack" in told
    assert f"for:            PodMigrationJob {job}" in told
    assert f"a person asked for this pod to be moved to {target}" in told
    shown = json.loads(koord(running, "evictions", "--actor", "koord-migrate", "--since", "1h", "-o", "json").stdout)
    (record,) = [one for one in shown if one["name"] == pod]
    assert (record["rule"], record["outcome"], record["node"]) == ("ReservationFirst", "evicted", node)
    assert record["request"] == f"PodMigrationJob {job}"
    assert pod in koord(running, "evictions", "-o", "wide").stdout


def test_one_is_called_off(running: KoordUpProcess) -> None:
    pod, _ = first_pod(running, "other")
    job = koord(running, "migrate", "pod", pod, "--mode", "EvictDirectly", "--paused").stdout.split()[1]
    assert koord(running, "migrate", "cancel", job).stdout == f"{job} cancelled\n"
    assert job not in listed(running)
    assert koord(running, "migrations", job).stderr == f"koord: there is no podmigrationjob {job}\n"


@pytest.mark.parametrize(
    ("app", "args", "line"),
    [
        pytest.param("lone", (), "would refuse it: Deployment lone has 1 replica", id="the-only-one"),
        pytest.param("other", ("--mode", "EvictDirectly", "--to", "node-0"), "--to needs a reservation", id="no-place"),
        pytest.param("web", ("--to", "nowhere"), 'nodes "nowhere" not found', id="unknown-node"),
        pytest.param("web", ("--ttl", "soon"), "--ttl soon", id="bad-time"),
    ],
)
def test_what_cannot_be_is_one_line_and_makes_nothing(
    running: KoordUpProcess, app: str, args: tuple[str, ...], line: str
) -> None:
    before = listed(running).keys()
    done = koord(running, "migrate", "pod", first_pod(running, app)[0], *args)
    assert done.exit_code == 1
    assert line in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert listed(running).keys() == before


def test_a_pod_of_the_default_scheduler_moves_as_the_tour_says(running: KoordUpProcess) -> None:
    pod, node = first_pod(running, "other")
    target = next(f"node-{i}" for i in range(3) if f"node-{i}" != node)
    done = koord(running, "migrate", "pod", f"default/{pod}", "--to", target)
    assert done.exit_code == 0, done.stderr
    job = done.stdout.split()[1]
    kubectl(running, "wait", "--for=jsonpath={.status.phase}=Succeeded", f"pmj/{job}", "--timeout=60s")
    over = listed(running)[job]
    _, _, successor = over["new_pod"].partition("/")
    assert kubectl(running, "get", "pod", successor, "-o", "jsonpath={.spec.nodeName}") == target


@pytest.mark.parametrize(
    ("to", "schedulers", "line"),
    [
        ("", {"koord-scheduler"}, "or use --mode EvictDirectly, which"),
        ("n2", {"koord-scheduler", "b"}, "set schedulerName to b or koord-scheduler in its workload"),
        ("n2", {"koord-scheduler"}, "--mode EvictDirectly without --to"),
        ("n2", {"theirs"}, None),
    ],
)
def test_a_scheduler_without_reservations_is_told_with_a_way_out(
    to: str, schedulers: set[str], line: str | None
) -> None:
    pod = {"metadata": {"namespace": "d", "name": "p"}, "spec": {"schedulerName": "theirs", "nodeName": "n1"}}
    said = migration_blocker(pod, mode="ReservationFirst", to=to, schedulers=schedulers)
    assert said is None if line is None else line in (said or "")


def test_profiles_that_know_reservations() -> None:
    given = schedulers_with_reservations(to_dict(scheduler_setup.default_configuration()))
    assert given == {"koord-scheduler", "default-scheduler"}
    kubernetes = {"schedulerName": "k", "plugins": {"filter": {"enabled": [{"name": "NodeAffinity"}]}, "bind": {}}}
    everywhere = {"schedulerName": "m", "plugins": {"multiPoint": {"enabled": [{"name": "Reservation"}]}}}
    assert schedulers_with_reservations({"profiles": [kubernetes, everywhere, {}]}) == {"m"}


@pytest.mark.parametrize("name", ["default/", "a/b/c"])
def test_a_name_of_no_pod_is_one_line(name: str) -> None:
    done = CliRunner().invoke(cli, ["migrate", "pod", name])
    assert (done.exit_code, done.stderr) == (1, f"koord: {name!r} is not [NAMESPACE/]POD\n")


def test_an_unknown_pod_is_one_line(running: KoordUpProcess) -> None:
    done = koord(running, "migrate", "pod", "default/nobody")
    assert (done.exit_code, done.stderr) == (1, 'koord: pods "nobody" not found\n')


def test_a_dry_run_asks_the_running_one_for_its_configuration_and_its_file_decides_alike(
    running: KoordUpProcess, tmp_path: Path
) -> None:
    saved = tmp_path / "snapshot.yaml"
    live = koord(running, "deschedule", "--dry-run", "--plugin", "RemoveDuplicates", "--save", str(saved), "-o", "json")
    assert live.exit_code == 0, live.stderr
    found = json.loads(live.stdout)
    assert found["configuration"] == "that of the running koord-descheduler"
    assert (found["nodes"], found["pods"]) == (3, 5)
    kept = koord(running, "deschedule", "--dry-run", "--plugin", "RemoveDuplicates", "--snapshot", str(saved))
    assert kept.exit_code == 0, kept.stderr
    assert "A dry run over 3 nodes and 5 pods" in kept.stdout
