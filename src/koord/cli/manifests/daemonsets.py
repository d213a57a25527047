"""This module makes the DaemonSets of an installation.

koordlet runs on every node, with the machine's own files mounted where its flags expect them. It runs as root and
privileged, since it writes other groups' kernel files. koord-device-daemon has the machine's root directory, whose
tools it runs, and no rights at the API server, which it does not talk to.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Literal

from koord.api.config.gates import parse_feature_gates
from koord.api.model import Obj
from koord.cli.manifests.cluster_objects import LABELS
from koord.devicedaemon.settings import HOST_ROOT, OUTPUT_FILE
from koord.host.filesystem import DAEMONSET_PATHS, HostPaths
from koord.koordlet.feature_gates import KOORDLET_GATES
from koord.koordlet.pod_resources.settings import FOLDER as POD_RESOURCES_FOLDER
from koord.koordlet.settings import PORT

KOORDLET = "koordlet"
APP = "koord-app"
RESTORE, SAFE_MODE = "restore", "--safe-mode"  # the container that undoes what agents wrote; the flag to write nothing
KOORDLET_RESOURCES = {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"cpu": "500m", "memory": "256Mi"}}
# Name, place on the machine, place in the pod, whether it is only read.
MOUNTS: tuple[tuple[str, str, str, bool], ...] = (
    ("host-cgroup-root", "/sys/fs/cgroup", "/host-cgroup", False),
    ("host-sys", "/sys", "/host-sys", False),
    ("host-sys-fs", "/sys/fs", "/host-sys-fs", False),
    ("host-var-run", "/var/run", "/host-var-run", False),
    ("host-run", "/run", "/host-run", True),
    ("host-kubelet-rootdir", "/var/lib/kubelet", "/var/lib/kubelet", True),
    ("host-var-log-koordlet", "/var/log/koordlet", "/var/log/koordlet", False),
    ("host-prediction-checkpoints", "/var/lib/koordlet/prediction-checkpoints", "/prediction-checkpoints", False),
)
# koord-runtime-proxy finds the agent's server by the file that the agent leaves in the registration directory.
PROXY_MOUNTS: tuple[tuple[str, str, str, bool], ...] = (
    ("host-var-run-koordlet", "/var/run/koordlet", "/host-var-run-koordlet", False),
    ("host-etc-hookserver", "/etc/runtime/hookserver.d", "/host-etc-hookserver", False),
)
PROXY_SOCKET = "koordlet.sock"
TERWAY_GATE = "TerwayQoS"
TERWAY_MOUNT = ("host-var-lib-terway-qos", HostPaths().terway, DAEMONSET_PATHS.terway, False)
# What an agent needs of the machine for a gate: Terway's folder; that of its socket of pod resources; the folders of
# containers in HAMi-core's; what is /dev/shm to the MPS daemons that it starts.
GATE_MOUNTS: dict[str, tuple[str, str, str, bool]] = {
    TERWAY_GATE: TERWAY_MOUNT,
    "PodResourcesProxy": ("host-pod-resources", POD_RESOURCES_FOLDER, POD_RESOURCES_FOLDER, False),
    "HamiCoreVGPUMonitor": ("host-vgpu", "/usr/local/vgpu", "/usr/local/vgpu", False),
    "MPSControlDaemon": ("host-mps-shm", "/var/run/koordlet/mps/shm", "/dev/shm", False),
}
_CREATED_HOST_PATHS = frozenset(
    {
        "host-var-log-koordlet",
        "host-prediction-checkpoints",
        *(name for name, _, _, _ in (*PROXY_MOUNTS, *GATE_MOUNTS.values())),
    }
)
# As Koordinator's chart: what an agent does whose gates nobody states.
SHIPPED_KOORDLET_GATES = "BECPUEvict=true,BEMemoryEvict=true,CgroupReconcile=true,Accelerators=true"
RuntimeHooks = Literal["nri", "proxy", "none"]


def koordlet_objects(
    namespace: str,
    image: str,
    feature_gates: str,
    flags: Sequence[str] = (),
    runtime_hooks: RuntimeHooks = "nri",
    *,
    restores: bool = False,
) -> list[Obj]:
    """Return the agent's DaemonSet.

    `runtime_hooks` says how it sees containers before they start: over the runtime's NRI socket, as the server of
    koord-runtime-proxy, or not at all. One that `restores` puts back every file that agents wrote, and writes no more.
    """
    gates = parse_feature_gates(feature_gates, KOORDLET_GATES)
    enabled = gates if isinstance(gates, dict) else {}
    mounts = (
        *MOUNTS,
        *(PROXY_MOUNTS if runtime_hooks == "proxy" else ()),
        *(mount for gate, mount in GATE_MOUNTS.items() if enabled.get(gate)),
    )
    container: Obj = {
        "name": KOORDLET,
        "image": image,
        "command": ["koordlet"],
        "args": [
            f"--addr=:{PORT}",
            "--cgroup-root-dir=/host-cgroup/",
            f"--feature-gates={feature_gates or SHIPPED_KOORDLET_GATES}",
            "--v=4",
            "--xpu-device-infos-dir=/host-var-run/koordlet/xpu-device-infos/",
            *runtime_hook_flags(runtime_hooks, PROXY_MOUNTS[0][1]),
            *((SAFE_MODE,) if restores else ()),
            *flags,
        ],
        "env": [{"name": "NODE_NAME", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "spec.nodeName"}}}],
        "ports": [{"name": "metrics", "containerPort": PORT, "hostPort": PORT, "protocol": "TCP"}],
        "readinessProbe": {"httpGet": {"path": "/readyz", "port": PORT}, "periodSeconds": 10},
        "livenessProbe": {
            "httpGet": {"path": "/healthz", "port": PORT},
            "initialDelaySeconds": 30,
            "periodSeconds": 10,
            "failureThreshold": 6,
        },
        "resources": KOORDLET_RESOURCES,
        "securityContext": {"privileged": True, "runAsUser": 0, "readOnlyRootFilesystem": True},
        "volumeMounts": [_mount(name, inside, read_only) for name, _, inside, read_only in mounts],
    }
    spec: Obj = {
        "serviceAccountName": KOORDLET,
        "automountServiceAccountToken": True,  # bound to the pod, renewed by the kubelet
        "priorityClassName": "system-node-critical",
        "hostNetwork": True,
        "hostPID": True,  # the kubelet's process tells how its groups are named
        "dnsPolicy": "ClusterFirstWithHostNet",
        "terminationGracePeriodSeconds": 10,
        "tolerations": [{"operator": "Exists"}],
        "containers": [container],
        "volumes": [
            {
                "name": name,
                "hostPath": {"path": path, "type": "DirectoryOrCreate" if name in _CREATED_HOST_PATHS else ""},
            }
            for name, path, _, _ in mounts
        ],
    }
    if restores:
        spec["initContainers"] = [restoring_container(container)]
    labels = {**LABELS, APP: KOORDLET}
    # The proxy would wait for the hooks of the pod that serves them.
    pod_labels = {**labels, "runtimeproxy.koordinator.sh/skip-hookserver": "true"}
    return [
        {
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": {"name": KOORDLET, "namespace": namespace, "labels": labels},
            "spec": {
                "minReadySeconds": 10,
                "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "20%"}},
                "selector": {"matchLabels": {APP: KOORDLET}},
                "template": {"metadata": {"labels": pod_labels}, "spec": spec},
            },
        }
    ]


def restoring_container(agent: Obj) -> Obj:
    """Return the container that undoes what agents wrote on its machine, before an agent that writes nothing starts."""
    same = ("image", "imagePullPolicy", "args", "resources", "securityContext", "volumeMounts")
    return {
        "name": RESTORE,
        "command": [KOORDLET, "restore"],
        **{field: agent[field] for field in same if field in agent},
        "terminationMessagePolicy": "FallbackToLogsOnError",  # so that its pod says what could not be put back
    }


def runtime_hook_flags(runtime_hooks: RuntimeHooks, socket_dir: str) -> list[str]:
    """Return the flags of one way of runtime hooks. `socket_dir` is the folder of the agent's socket on the machine."""
    flags = [
        f"--enable-nri-runtime-hook={'true' if runtime_hooks == 'nri' else 'false'}",
        f"--runtime-hooks-server={'on' if runtime_hooks == 'proxy' else 'off'}",
    ]
    if runtime_hooks == "proxy":
        flags.append(f"--runtime-hooks-host-endpoint={socket_dir.rstrip('/')}/{PROXY_SOCKET}")
    return flags


def _mount(name: str, inside: str, read_only: bool) -> Obj:
    mount: Obj = {"name": name, "mountPath": inside}
    if read_only:
        mount["readOnly"] = True
    if name == "host-sys-fs":  # resctrl, when the agent mounts it, must show on the machine
        mount["mountPropagation"] = "Bidirectional"
    return mount


DEVICE_DAEMON = "koord-device-daemon"
DEVICE_DAEMON_RESOURCES = {"requests": {"cpu": "0", "memory": "0"}, "limits": {"cpu": "200m", "memory": "256Mi"}}
_FOLDER = os.path.dirname(OUTPUT_FILE)


def device_daemon_objects(namespace: str, image: str) -> list[Obj]:
    """Return the daemon's DaemonSet."""
    container: Obj = {
        "name": DEVICE_DAEMON,
        "image": image,
        "command": [DEVICE_DAEMON],
        "args": ["--v=4"],
        "resources": DEVICE_DAEMON_RESOURCES,
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
    labels = {**LABELS, APP: DEVICE_DAEMON}
    return [
        {
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": {"name": DEVICE_DAEMON, "namespace": namespace, "labels": labels},
            "spec": {
                "minReadySeconds": 10,
                "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "20%"}},
                "selector": {"matchLabels": {APP: DEVICE_DAEMON}},
                "template": {"metadata": {"labels": labels}, "spec": spec},
            },
        }
    ]
