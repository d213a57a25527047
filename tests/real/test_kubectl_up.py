"""kubectl against a whole `koord up`: what needs controllers and nodes behaves as on a real cluster."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator

import pytest

from tests.koord_up_process import KoordUpProcess, koord_up
from tests.real.kubectl import Said, find, kubectl

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def cluster() -> Iterator[KoordUpProcess]:
    with koord_up("--nodes", "3") as running:
        yield running


def said(cluster: KoordUpProcess, text: str, *, stdin: object = None) -> Said:
    return kubectl(cluster.kubeconfig, *text.split(" "), stdin=json.dumps(stdin) if stdin else "")


def good(cluster: KoordUpProcess, text: str, *, stdin: object = None) -> str:
    done = said(cluster, text, stdin=stdin)
    assert done.code == 0, done.err
    return done.out


def test_nodes_are_ready(cluster: KoordUpProcess) -> None:
    lines = good(cluster, "get nodes").splitlines()[1:]
    assert len(lines) == 3
    assert all(" Ready " in line for line in lines)


def test_a_rollout_its_history_and_its_undo(cluster: KoordUpProcess) -> None:
    good(cluster, "create deployment web --image=example/web:1 --replicas=4")
    assert "successfully rolled out" in good(cluster, "rollout status deployment/web --timeout=60s")
    good(cluster, "set image deployment/web web=example/web:2")
    assert "successfully rolled out" in good(cluster, "rollout status deployment/web --timeout=60s")
    history = good(cluster, "rollout history deployment/web")
    assert [line.split()[0] for line in history.splitlines() if line[:1].isdigit()] == ["1", "2"]
    good(cluster, "rollout undo deployment/web")
    good(cluster, "rollout status deployment/web --timeout=60s")
    image = good(cluster, "get deployment web -o jsonpath={.spec.template.spec.containers[0].image}")
    assert image == "example/web:1"
    good(cluster, "scale deployment web --replicas=2")
    good(cluster, "wait deployment/web --for=jsonpath={.status.replicas}=2 --timeout=60s")
    good(cluster, "delete deployment web")
    good(cluster, "wait --for=delete pod -l app=web --timeout=60s")


def test_a_job_completes_and_its_pods_go_with_it(cluster: KoordUpProcess) -> None:
    annotations = {"sim.koord.sh/run-seconds": "1"}
    container = {"name": "c", "image": "example/batch:1"}
    template = {"metadata": {"annotations": annotations}, "spec": {"restartPolicy": "Never", "containers": [container]}}
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "sums"},
        "spec": {"completions": 3, "parallelism": 2, "template": template},
    }
    good(cluster, "apply -f -", stdin=job)
    good(cluster, "wait --for=condition=complete job/sums --timeout=60s")
    assert "3/3" in good(cluster, "get job sums")
    good(cluster, "delete job sums")
    good(cluster, "wait --for=delete pod -l job-name=sums --timeout=60s")


def test_cordon_drain_and_uncordon_respect_budgets(cluster: KoordUpProcess) -> None:
    good(cluster, "create deployment kept --image=example/kept:1 --replicas=3")
    good(cluster, "rollout status deployment/kept --timeout=60s")
    good(cluster, "create pdb kept --selector=app=kept --min-available=2")
    good(cluster, "wait pdb/kept --for=jsonpath={.status.disruptionsAllowed}=1 --timeout=60s")
    node = good(cluster, "get pods -l app=kept -o jsonpath={.items[0].spec.nodeName}")
    good(cluster, f"drain {node} --ignore-daemonsets --delete-emptydir-data --timeout=90s")
    assert "SchedulingDisabled" in good(cluster, f"get node {node}")
    left = good(cluster, f"get pods -A --field-selector spec.nodeName={node} -o name")
    assert left == ""
    good(cluster, f"uncordon {node}")
    good(cluster, "rollout status deployment/kept --timeout=60s")
    good(cluster, "delete pdb kept")
    good(cluster, "delete deployment kept")


def test_a_namespace_goes_with_all_that_is_in_it(cluster: KoordUpProcess) -> None:
    good(cluster, "create namespace team")
    good(cluster, "create deployment web --image=example/web:1 --replicas=2 -n team")
    good(cluster, "create configmap c --from-literal=k=v -n team")
    good(cluster, "delete namespace team --timeout=60s")
    assert "NotFound" in said(cluster, "get namespace team").err


def test_watching_shows_changes_as_they_come(cluster: KoordUpProcess) -> None:
    command = [find(), "--kubeconfig", str(cluster.kubeconfig), "get", "configmaps", "-w", "--no-headers"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        good(cluster, "create configmap seen --from-literal=k=v")
        assert any(line.startswith("seen ") for line in watching.stdout)
        watching.terminate()
    good(cluster, "delete configmap seen")


def test_statefulset_and_daemonset_roll_out(cluster: KoordUpProcess) -> None:
    spec = {"containers": [{"name": "c", "image": "example/app:1"}]}

    def workload(kind: str, name: str, **more: object) -> dict[str, object]:
        labels = {"app": name}
        body = {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": spec}, **more}
        return {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name}, "spec": body}

    good(cluster, "apply -f -", stdin=workload("StatefulSet", "db", serviceName="db", replicas=2))
    good(cluster, "rollout status statefulset/db --timeout=60s")
    assert good(cluster, "get pods -l app=db -o name").split() == ["pod/db-0", "pod/db-1"]
    good(cluster, "apply -f -", stdin=workload("DaemonSet", "agent"))
    good(cluster, "rollout status daemonset/agent --timeout=60s")
    assert len(good(cluster, "get pods -l app=agent -o name").split()) == 3
    good(cluster, "delete statefulset/db daemonset/agent")


def test_koord_kinds_are_there(cluster: KoordUpProcess) -> None:
    assert "reservations" in good(cluster, "api-resources --api-group=scheduling.koordinator.sh")
    assert "FIELDS:" in good(cluster, "explain reservations.spec")
    missing = {
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "Reservation",
        "metadata": {"name": "r"},
        "spec": {},
    }
    assert "spec.owners: Required value" in said(cluster, "apply -f -", stdin=missing).err
