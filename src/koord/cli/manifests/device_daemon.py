"""This module makes the DaemonSet of koord-device-daemon: with the machine's root directory, whose tools it runs. It
has no rights at the API server, which it does not talk to.
"""

from __future__ import annotations

import os
from typing import Any

from koord.cli.manifests.cluster_objects import LABELS
from koord.cli.manifests.koordlet_daemonset import APP
from koord.devicedaemon.settings import HOST_ROOT, OUTPUT_FILE

Obj = dict[str, Any]

NAME = "koord-device-daemon"
RESOURCES = {"requests": {"cpu": "0", "memory": "0"}, "limits": {"cpu": "200m", "memory": "256Mi"}}
_FOLDER = os.path.dirname(OUTPUT_FILE)


def device_daemon_objects(namespace: str, image: str) -> list[Obj]:
    """Return the daemon's DaemonSet."""
    container: Obj = {
        "name": NAME,
        "image": image,
        "command": [NAME],
        "args": ["--v=4"],
        "resources": RESOURCES,
        "securityContext": {"privileged": True, "runAsUser": 0, "readOnlyRootFilesystem": True},
        "volumeMounts": [
            {"name": "host-root", "mountPath": HOST_ROOT, "mountPropagation": "HostToContainer"},
            {"name": "xpu-device-infos", "mountPath": _FOLDER},
        ],
    }
    spec: Obj = {
        "automountServiceAccountToken": False,
        "priorityClassName": "system-node-critical",
        "hostNetwork": True,
        "hostPID": True,
        "hostIPC": True,
        "terminationGracePeriodSeconds": 30,
        "tolerations": [{"operator": "Exists"}],
        "containers": [container],
        "volumes": [
            {"name": "host-root", "hostPath": {"path": "/", "type": "Directory"}},
            {"name": "xpu-device-infos", "hostPath": {"path": _FOLDER, "type": "DirectoryOrCreate"}},
        ],
    }
    labels = {**LABELS, APP: NAME}
    return [
        {
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": {"name": NAME, "namespace": namespace, "labels": labels},
            "spec": {
                "minReadySeconds": 10,
                "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "20%"}},
                "selector": {"matchLabels": {APP: NAME}},
                "template": {"metadata": {"labels": labels}, "spec": spec},
            },
        }
    ]
