"""Accounts and pods that ServiceAccount admission looks at, and what it makes of the pods."""

from __future__ import annotations

from typing import Any

Obj = dict[str, Any]
PATH = "/var/run/secrets/kubernetes.io/serviceaccount"
ACCOUNTS: list[Obj] = [
    {"metadata": {"name": "default"}},
    {"metadata": {"name": "pulls"}, "imagePullSecrets": [{"name": "first"}, {"name": "second"}]},
    {"metadata": {"name": "shy"}, "automountServiceAccountToken": False},
]
TOKEN: Obj = {"projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}


def pod(*, mirror: bool = False, containers: list[Obj] | None = None, **spec: Any) -> Obj:
    held = containers or [{"name": "c", "image": "i:1"}]
    meta = {"name": "p", "annotations": {"kubernetes.io/config.mirror": "x"}} if mirror else {"name": "p"}
    return {"metadata": meta, "spec": {"containers": held, **spec}}


def mounting(name: str, path: str) -> Obj:
    return {"name": f"c-{name}", "image": "i:1", "volumeMounts": [{"name": name, "mountPath": path}]}


_DATA = {"name": "data", "emptyDir": {}}
CASES: dict[str, Obj] = {
    "plain": pod(),
    "deprecated-field": pod(serviceAccount="pulls"),
    "pull-secrets-of-the-account": pod(serviceAccountName="pulls"),
    "pull-secrets-of-the-pod": pod(serviceAccountName="pulls", imagePullSecrets=[{"name": "mine"}]),
    "pod-opts-out": pod(automountServiceAccountToken=False),
    "account-opts-out": pod(serviceAccountName="shy"),
    "pod-before-account": pod(serviceAccountName="shy", automountServiceAccountToken=True),
    "init-container": pod(initContainers=[{"name": "i", "image": "i:1"}]),
    "own-mount-at-the-path": pod(containers=[mounting("data", PATH)], volumes=[_DATA]),
    "own-mount-in-one-of-two": pod(containers=[mounting("data", PATH), {"name": "c", "image": "i:1"}], volumes=[_DATA]),
    "own-mount-elsewhere": pod(containers=[mounting("data", "/data")], volumes=[_DATA]),
    "own-volume": pod(volumes=[{"name": "kube-api-access-mine", "emptyDir": {}}]),
    "no-such-account": pod(serviceAccountName="nobody"),
    "mirror": pod(mirror=True, nodeName="n"),
    "mirror-with-account": pod(mirror=True, nodeName="n", serviceAccountName="default"),
    "mirror-with-token": pod(mirror=True, nodeName="n", volumes=[{"name": "t", **TOKEN}]),
}


def outcome(status: int, body: Obj) -> Obj:
    """Return what admission decides of an answer, without the random end of the volume's name."""
    if status != 201:
        return {"status": status, "message": body["message"]}
    spec = body["spec"]
    keys = ("serviceAccount", "serviceAccountName", "automountServiceAccountToken", "imagePullSecrets")
    mounts = {
        one["name"]: [{**mount, "name": shortened(mount["name"])} for mount in one.get("volumeMounts", ())]
        for one in (*spec.get("initContainers", ()), *spec["containers"])
    }
    volumes = [{**one, "name": shortened(one["name"])} for one in spec.get("volumes", ())]
    return {"status": status, "mounts": mounts, "volumes": volumes, **{key: spec[key] for key in keys if key in spec}}


def shortened(name: str) -> str:
    prefix, _, suffix = name.rpartition("-")
    return f"{prefix}-*" if prefix == "kube-api-access" and suffix != "mine" and len(suffix) == 5 else name
