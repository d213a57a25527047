"""`koord gang` as people run it, against one `koord up`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.koord_up_process import KoordUpProcess, koord_up

LABEL = "pod-group.scheduling.sigs.k8s.io"


def a_pod_group(name: str, minimum: int) -> dict[str, Any]:
    meta = {"name": name, "namespace": "default"}
    spec = {"minMember": minimum, "scheduleTimeoutSeconds": 30}
    return {"apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "PodGroup", "metadata": meta, "spec": spec}


def a_pod(gang: str, number: int, cpu: str = "1") -> dict[str, Any]:
    meta = {"name": f"{gang}-{number}", "namespace": "default", "labels": {LABEL: gang}}
    container = {"name": "c", "image": "x", "resources": {"requests": {"cpu": cpu}}}
    spec = {"schedulerName": "koord-scheduler", "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


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
        gangs = [a_pod_group("fits", 2), a_pod_group("short", 3), a_pod_group("huge", 2)]
        pods = [*(a_pod("fits", n) for n in range(2)), *(a_pod("short", n) for n in range(2))]
        pods += [a_pod("huge", n, "100000") for n in range(2)]
        kubectl(cluster, "create", "-f", "-", given=[*gangs, *pods])
        for pod in ("fits-0", "fits-1"):
            kubectl(cluster, "wait", "--for=condition=PodScheduled=True", f"pod/{pod}", "--timeout=60s")
        for pod in ("huge-0", "huge-1"):
            kubectl(cluster, "wait", "--for=condition=PodScheduled=False", f"pod/{pod}", "--timeout=60s")
        yield cluster


def test_all_of_them_in_a_table(running: KoordUpProcess) -> None:
    done = koord(running, "gang")
    assert done.returncode == 0, done.stderr
    lines = {line.split()[0]: " ".join(line.split()[1:]) for line in done.stdout.splitlines()}
    assert lines["default/fits"] == "2 2 2 0 has started"
    assert lines["default/short"] == "3 2 0 0 waits for 1 more of 3 members"
    assert lines["default/huge"] == "2 2 0 0 found no room for all"


def test_one_says_what_is_held_before_the_queue_and_why_P6(running: KoordUpProcess) -> None:
    found = json.loads(koord(running, "gang", "short", "-o", "json").stdout)
    assert found["told"] == "waits for 1 more of 3 members"
    assert [(member["state"], member["pod"]) for member in found["standings"]] == [
        ("held", "default/short-0"),
        ("held", "default/short-1"),
    ]
    assert "child pod not collect enough" in found["standings"][0]["why"]
    assert found["waitSeconds"] == 30
    shown = koord(running, "gang", "default/short").stdout
    assert "members   2 of at least 3; 0 bound, 0 waiting at their node" in shown


def test_a_gang_without_room_tells_of_its_last_try(running: KoordUpProcess) -> None:
    found = json.loads(koord(running, "gang", "huge", "-o", "json").stdout)
    assert 'GangGroup "default/huge" gets rejected due to member Pod "default/huge-0"' in found["lastFailure"]
    assert "Insufficient cpu" in found["lastFailure"]


def test_an_unknown_one_is_one_line(running: KoordUpProcess) -> None:
    done = koord(running, "gang", "nobody")
    assert done.returncode == 1
    assert "cannot find gang default/nobody" in done.stderr


def test_members_of_a_complete_gang_are_not_told_that_it_is_incomplete(running: KoordUpProcess) -> None:
    found = json.loads(koord(running, "gang", "huge", "-o", "json").stdout)
    held = [member["why"] for member in found["standings"] if member["state"] == "held"]
    assert len(held) == 1
    assert "tried" in held[0]
    assert "not collect enough" not in held[0]


def test_events_of_a_gang_and_of_a_reservation_name_the_scheduler_that_was_asked(running: KoordUpProcess) -> None:
    container = {"name": "c", "image": "x", "resources": {"requests": {"cpu": "100000"}}}
    template = {"spec": {"schedulerName": "koord-scheduler", "containers": [container]}}
    spec = {"owners": [{"labelSelector": {"matchLabels": {"app": "a"}}}], "ttl": "1h", "template": template}
    meta = {"name": "too-much"}
    kind = {"apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Reservation"}
    kubectl(running, "create", "-f", "-", given=[{**kind, "metadata": meta, "spec": spec}])
    kubectl(running, "wait", "--for=jsonpath={.status.phase}=Pending", "reservation/too-much", "--timeout=60s")
    kubectl(running, "wait", "--for=create", "event", "--field-selector=involvedObject.name=too-much", "--timeout=60s")
    events = json.loads(kubectl(running, "get", "events", "-o", "json"))["items"]
    named = {
        one["reportingComponent"] for one in events if one["involvedObject"]["kind"] in ("Reservation", "PodGroup")
    }
    assert named == {"koord-scheduler"}
