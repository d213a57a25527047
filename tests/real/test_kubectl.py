"""The same kubectl commands against the real server and ours say the same things and exit with the same codes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.koord_up_process import KoordUpProcess, koord_up
from tests.real.kubectl import Said, kubectl
from tools.controlplane import ControlPlane

pytestmark = pytest.mark.real

POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "p", "labels": {"app": "p"}},
    "spec": {"containers": [{"name": "c", "image": "example/app:1", "resources": {"requests": {"cpu": "100m"}}}]},
}
CONFIG = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"a": "1", "b": "2"}}
CHANGED = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"a": "9"}}
BROKEN = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "dta": {"a": "9"}}
DEPLOYMENT = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "d"},
    "spec": {
        "replicas": 2,
        "selector": {"matchLabels": {"app": "d"}},
        "template": {
            "metadata": {"labels": {"app": "d"}},
            "spec": {"containers": [{"name": "c", "image": "example/app:1"}]},
        },
    },
}

# id, arguments, standard input, editor
COMMANDS: tuple[tuple[str, str, object, str], ...] = (
    ("create-namespace", "create namespace kc", None, ""),
    ("get-namespace", "get namespace kc", None, ""),
    ("apply", "apply -n kc -f -", CONFIG, ""),
    ("apply-again", "apply -n kc -f -", CONFIG, ""),
    ("apply-change", "apply -n kc -f -", CHANGED, ""),
    ("get-data", "get cm c -n kc -o jsonpath={.data}", None, ""),
    ("apply-unknown-field", "apply -n kc -f -", BROKEN, ""),
    ("diff", "diff -n kc -f -", CHANGED, ""),
    ("server-side", "apply --server-side -n kc -f -", CONFIG, ""),
    ("server-side-force", "apply --server-side --force-conflicts -n kc -f -", CONFIG, ""),
    ("apply-dry-client", "apply --dry-run=client -n kc -f -", CONFIG, ""),
    ("apply-dry-server", "apply --dry-run=server -n kc -f -", CHANGED, ""),
    ("create-pod", "create -n kc -f -", POD, ""),
    ("create-pod-again", "create -n kc -f -", POD, ""),
    ("get-pods", "get pods -n kc", None, ""),
    ("get-pods-wide", "get pods -n kc -o wide", None, ""),
    ("get-pods-labels", "get pods -n kc --show-labels", None, ""),
    ("get-pods-selector", "get pods -n kc -l app=p -o name", None, ""),
    ("get-pods-all", "get pods -A --field-selector metadata.namespace=kc", None, ""),
    ("get-pod-yaml", "get pod p -n kc -o yaml", None, ""),
    ("get-pod-json", "get pod p -n kc -o json", None, ""),
    ("get-custom-columns", "get pods -n kc -o custom-columns=N:.metadata.name,I:.spec.containers[0].image", None, ""),
    ("get-go-template", "get pods -n kc -o go-template={{len .items}}", None, ""),
    ("get-sorted", "get cm -n kc --sort-by=.metadata.name -o name", None, ""),
    ("get-missing", "get pod missing -n kc", None, ""),
    ("get-unknown-kind", "get nothings -n kc", None, ""),
    ("get-several", "get pods,cm -n kc", None, ""),
    ("create-one-key", "create configmap one -n kc --from-literal=k=v", None, ""),
    ("describe-pod", "describe pod p -n kc", None, ""),
    ("describe-cm", "describe cm one -n kc", None, ""),  # one key: kubectl prints several in any order
    ("describe-namespace", "describe namespace kc", None, ""),
    ("label", "label pod p -n kc tier=web", None, ""),
    ("label-again", "label pod p -n kc tier=web2", None, ""),
    ("label-overwrite", "label pod p -n kc tier=web2 --overwrite", None, ""),
    ("label-remove", "label pod p -n kc tier-", None, ""),
    ("annotate", "annotate pod p -n kc note=hello", None, ""),
    ("patch-strategic", 'patch pod p -n kc -p {"metadata":{"labels":{"x":"y"}}}', None, ""),
    ("patch-merge", 'patch cm c -n kc --type merge -p {"data":{"z":"1"}}', None, ""),
    ("patch-json", 'patch cm c -n kc --type json -p [{"op":"remove","path":"/data/z"}]', None, ""),
    ("patch-json-missing", 'patch cm c -n kc --type json -p [{"op":"remove","path":"/data/none"}]', None, ""),
    ("edit", "edit cm c -n kc", None, "sed -i /^..b:/d"),
    ("edit-nothing", "edit cm c -n kc", None, "true"),
    ("set-image", "set image pod/p c=example/app:2 -n kc", None, ""),
    ("create-deployment", "create -n kc -f -", DEPLOYMENT, ""),
    ("get-deployment", "get deployment d -n kc", None, ""),
    ("get-deployment-wide", "get deploy -n kc -o wide", None, ""),
    ("describe-deployment", "describe deployment d -n kc", None, ""),
    ("scale", "scale deployment d -n kc --replicas=4", None, ""),
    ("scale-condition", "scale deployment d -n kc --current-replicas=9 --replicas=1", None, ""),
    ("autoscale-free-get-scale", "get deployment d -n kc -o jsonpath={.spec.replicas}", None, ""),
    ("rollout-pause", "rollout pause deployment/d -n kc", None, ""),
    ("rollout-resume", "rollout resume deployment/d -n kc", None, ""),
    ("rollout-restart-twice", "rollout history deployment/d -n kc", None, ""),
    ("create-cm", "create configmap made -n kc --from-literal=k=v", None, ""),
    ("create-secret", "create secret generic s -n kc --from-literal=k=v", None, ""),
    ("get-secret", "get secret s -n kc -o jsonpath={.data.k}", None, ""),
    ("create-quota", "create quota q -n kc --hard=pods=100", None, ""),
    ("create-pdb", "create pdb b -n kc --selector=app=p --min-available=1", None, ""),
    ("get-pdb", "get pdb -n kc", None, ""),
    ("create-job", "create job j -n kc --image=example/app:1", None, ""),
    ("create-cronjob", "create cronjob cj -n kc --image=example/app:1 --schedule=*/5", None, ""),
    ("create-priority", "create priorityclass kc-high --value=1000", None, ""),
    ("get-priority", "get priorityclass kc-high", None, ""),
    ("delete-priority", "delete priorityclass kc-high", None, ""),
    ("api-resources", "api-resources --api-group=apps", None, ""),
    ("api-resources-core", "api-resources --api-group=", None, ""),
    ("can-i", "auth can-i create pods -n kc", None, ""),
    ("whoami", "auth whoami -o name", None, ""),
    ("wait-delete-missing", "wait --for=delete pod/none -n kc --timeout=5s", None, ""),
    ("wait-json", "wait --for=jsonpath={.status.phase}=Pending pod/p -n kc --timeout=10s", None, ""),
    ("replace", "replace -n kc -f -", CONFIG, ""),
    ("replace-missing", "replace -n kc -f -", {**CONFIG, "metadata": {"name": "none"}}, ""),
    ("delete-pod", "delete pod p -n kc", None, ""),
    ("delete-missing", "delete pod p -n kc", None, ""),
    ("delete-ignore", "delete pod p -n kc --ignore-not-found", None, ""),
    ("delete-file", "delete -n kc -f -", CONFIG, ""),
    ("delete-all", "delete cm --all -n kc", None, ""),
)


@pytest.fixture(scope="module")
def ours() -> Iterator[KoordUpProcess]:
    with koord_up("--nodes", "0", "--components", "") as running:
        yield running


def _run(kubeconfig: Path, args: str, stdin: object, editor: str) -> Said:
    # Words are split at spaces; the few arguments that contain JSON contain none.
    return kubectl(kubeconfig, *args.split(" "), stdin=json.dumps(stdin) if stdin else "", editor=editor)


@pytest.fixture(scope="module")
def said(plane: ControlPlane, ours: KoordUpProcess) -> dict[str, tuple[Said, Said]]:
    """All commands in order on both servers: later ones build on earlier ones."""
    return {
        id: (_run(plane.kubeconfig, args, stdin, editor), _run(ours.kubeconfig, args, stdin, editor))
        for id, args, stdin, editor in COMMANDS
    }


@pytest.mark.parametrize("id", [command[0] for command in COMMANDS])
def test_kubectl_says_the_same(id: str, said: dict[str, tuple[Said, Said]]) -> None:
    real, ours = said[id]
    assert ours.normalised() == real.normalised()


@pytest.mark.parametrize("output", ["plaintext", "plaintext-openapiv2"])
@pytest.mark.parametrize("what", ["pod", "deployment.spec.strategy", "cronjob", "node.status", "crd.spec.versions"])
def test_explain_shows_the_same_fields(what: str, output: str, plane: ControlPlane, ours: KoordUpProcess) -> None:
    """Fields and their types; the sentences about them are the real server's own."""
    args = ("explain", what, "--recursive", f"--output={output}")
    real, here = (kubectl(server.kubeconfig, *args) for server in (plane, ours))
    assert (here.code, here.err) == (real.code, real.err) == (0, "")
    head, _, fields = here.out.partition("FIELDS:\n")
    assert (head.splitlines()[:2], fields) == (real.out.splitlines()[:2], real.out.partition("FIELDS:\n")[2])
    assert fields
