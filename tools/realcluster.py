"""A real cluster of one node on this machine, as an installer finds one: RBAC and all of Kubernetes' admission,
kube-controller-manager, kube-scheduler, kubelet, containerd with NRI at its usual place, and pods with addresses.

Nothing forwards the addresses of Services here, as kube-proxy would. The API server therefore listens on the first
address of their range, where pods look for it, and calls webhooks at the endpoints of their Service
(`--enable-aggregator-routing`) and not at its address.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tools import assets, controlplane, realnode
from tools.controlplane import ControlPlane, free_port
from tools.realnode import Node

API_SERVICE = "10.96.0.1"  # the first address of the range of Services, which Kubernetes gives to its own
CONTROLLERS, SCHEDULER = "kube-controller-manager", "kube-scheduler"
NRI_FOLDER = Path("/run/nri")
# What koordlet's pod leaves on its node; removed with the node where it was not there before.
HOST_FOLDERS = (NRI_FOLDER, Path("/run/koordlet"), Path("/var/log/koordlet"), Path("/var/lib/koordlet"))


def missing() -> str:
    """Why no cluster can run here; empty when one can."""
    if reason := realnode.missing():
        return reason
    if not (assets.folder() / SCHEDULER).is_file():
        return f"no {SCHEDULER} built: run `python -m tools.assets` first"
    if not (assets.cluster_folder() / CONTROLLERS).is_file():
        return f"no {CONTROLLERS} built: run `python -m tools.assets cluster` first"
    return ""


@contextlib.contextmanager
def running() -> Iterator[Node]:
    if reason := missing():
        raise RuntimeError(reason)
    with realnode.running(("--enable-aggregator-routing=true",), plane=_plane, nri_folder=NRI_FOLDER) as node:
        _wait_for_account(node.plane)
        yield node


def _wait_for_account(plane: ControlPlane) -> None:
    """Until controllers have made the account without which no pod of the namespace is admitted."""
    deadline = time.monotonic() + 60
    while True:
        with contextlib.suppress(OSError):
            plane.get("/api/v1/namespaces/default/serviceaccounts/default")
            return
        if time.monotonic() > deadline:
            log = (plane.folder / f"{CONTROLLERS}.log").read_text()[-2000:]
            raise RuntimeError(f"no service account was made in 60 s:\n{log}")
        time.sleep(0.1)


@contextlib.contextmanager
def _plane(extra_args: Sequence[str]) -> Iterator[ControlPlane]:
    """Outside of the node: what this removes at the end is what the node's pods have left behind."""
    started = controlplane.running(extra_args, authorization="RBAC", address=API_SERVICE, port=443, controllers=True)
    with _host_folders(), _shared_sys(), _service_address(), started as plane:
        plane.commands |= _commands(plane)
        for name in (CONTROLLERS, SCHEDULER):
            plane.start(name)
        yield plane


@contextlib.contextmanager
def _host_folders() -> Iterator[None]:
    made = [folder for folder in HOST_FOLDERS if not folder.exists()]
    try:
        yield
    finally:
        for folder in made:
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _shared_sys() -> Iterator[None]:
    """Let mounts below /sys show in all mount namespaces, as they do where systemd runs: koordlet's pod asks for it."""
    mounts = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    private = any(fields[4] == "/sys" and not fields[6].startswith("shared:") for fields in mounts)
    if private:
        subprocess.run(["mount", "--make-rshared", "/sys"], check=True, capture_output=True)
    try:
        yield
    finally:
        if private:
            subprocess.run(["mount", "--make-rprivate", "/sys"], check=False, capture_output=True)


@contextlib.contextmanager
def _service_address() -> Iterator[None]:
    address = (f"{API_SERVICE}/32", "dev", "lo")
    subprocess.run(["ip", "addr", "replace", *address], check=True, capture_output=True)
    try:
        yield
    finally:
        subprocess.run(["ip", "addr", "del", *address], check=False, capture_output=True)


def _commands(plane: ControlPlane) -> dict[str, list[str]]:
    common = ["--kubeconfig", str(plane.kubeconfig), "--leader-elect=false", "--bind-address=127.0.0.1"]
    tokens = ["--service-account-private-key-file", str(plane.account_key), "--root-ca-file", str(plane.ca)]
    return {
        CONTROLLERS: [
            *(str(assets.cluster_folder() / CONTROLLERS), *common, f"--secure-port={free_port()}", *tokens),
            "--use-service-account-credentials=false",
        ],
        SCHEDULER: [str(assets.folder() / SCHEDULER), *common, f"--secure-port={free_port()}"],
    }


def main() -> None:
    """Run until Ctrl-C."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with running() as node:
        print(f"ready: KUBECONFIG={node.plane.kubeconfig} kubelet root {node.kubelet_root}", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()


if __name__ == "__main__":
    main()
