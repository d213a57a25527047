"""`koord reservation` as people run it, against one `koord up`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.koord_up_process import KoordUpProcess, koord_up

OWNER = {"app": "owner"}


def a_reservation(name: str, cpu: str, **spec: Any) -> dict[str, Any]:
    container = {"name": "c", "image": "x", "resources": {"requests": {"cpu": cpu}}}
    return {
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "Reservation",
        "metadata": {"name": name},
        "spec": {
            "template": {"spec": {"schedulerName": "koord-scheduler", "containers": [container]}},
            "owners": [{"labelSelector": {"matchLabels": OWNER}}],
            "ttl": "24h",
            "allocateOnce": False,
            **spec,
        },
    }


def a_pod(name: str, cpu: str, annotations: dict[str, str] | None = None) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": OWNER, "annotations": annotations or {}},
        "spec": {
            "schedulerName": "koord-scheduler",
            "containers": [{"name": "c", "image": "x", "resources": {"requests": {"cpu": cpu}}}],
        },
    }


def koord(running: KoordUpProcess, *args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "koord", *args, "--kubeconfig", str(running.kubeconfig)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def kubectl(running: KoordUpProcess, *args: str, given: list[dict[str, Any]] | None = None) -> str:
    command = ["kubectl", "--kubeconfig", str(running.kubeconfig), *args]
    text = yaml.safe_dump_all(given) if given is not None else None
    done = subprocess.run(command, capture_output=True, text=True, input=text, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def running() -> Iterator[KoordUpProcess]:
    with koord_up("--nodes", "1") as cluster:
        kubectl(cluster, "create", "-f", "-", given=[a_reservation("room", "3"), a_reservation("huge", "100000")])
        kubectl(cluster, "wait", "--for=jsonpath={.status.phase}=Available", "reservation/room", "--timeout=60s")
        kubectl(cluster, "wait", "--for=condition=Scheduled=False", "reservation/huge", "--timeout=60s")
        asks = {"scheduling.koordinator.sh/reservation-affinity": json.dumps({"name": "huge"})}
        kubectl(cluster, "create", "-f", "-", given=[a_pod("holder", "2"), a_pod("waiter", "1", asks)])
        kubectl(cluster, "wait", "--for=condition=PodScheduled=True", "pod/holder", "--timeout=60s")
        kubectl(cluster, "wait", "--for=condition=PodScheduled=False", "pod/waiter", "--timeout=60s")
        yield cluster


def test_all_of_them_in_a_table(running: KoordUpProcess) -> None:
    done = koord(running, "reservation")
    assert done.returncode == 0, done.stderr
    *table, why = done.stdout.splitlines()
    lines = {line.split()[0]: line for line in table}
    assert "Available" in lines["room"]
    assert "cpu 1000m" in lines["room"], "what is left of it"
    assert "Pending" in lines["huge"]
    assert lines["huge"].rstrip().endswith("-"), "its time does not run"
    assert why.startswith("huge has no node: 0/1 nodes are available: 1 Insufficient cpu")


def test_one_with_who_holds_it_and_why_it_waits(running: KoordUpProcess) -> None:
    room = json.loads(koord(running, "reservation", "room", "-o", "json").stdout)
    assert [(part["pod"], part["amounts"]) for part in room["holders"]] == [("default/holder", {"cpu": 2000})]
    assert (room["reserved"], room["left"], room["waiting"]) == ({"cpu": 3000}, {"cpu": 1000}, [])
    shown = koord(running, "reservation", "huge").stdout
    assert "1 Insufficient cpu" in shown
    assert "default/waiter" in shown
    assert "Held by nobody." in shown


def test_an_unknown_one_is_one_line(running: KoordUpProcess) -> None:
    done = koord(running, "reservation", "nobody")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "koord: there is no reservation nobody\n")
