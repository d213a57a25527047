"""A real node beside a real control plane: a container runtime, runc and kubelet as root on this machine, for tests.

As a context manager it starts everything in a temporary folder and leaves no mount, cgroup, link or process behind.
Only one can run at a time on a machine, as the kernel's cgroups and the bridge have fixed names: a second one waits.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from koord.host.cgroup.layout import CGROUPFS, SYSTEMD
from tools import assets, controlplane, image, node_runtime
from tools.controlplane import ControlPlane, patience_s

NODE = "node1"
BRIDGE, ADDRESS, SUBNET = "kn0", "10.88.0.1", "10.88.0.0/24"
KUBELET_PORT = 30250
CGROUPS = Path("/sys/fs/cgroup")
NEEDED = ("kubelet", "containerd", "containerd-shim-runc-v2", "ctr", "bridge", "loopback", "host-local")
CONTAINERD_2, CONTAINERD_17, CRI_O = node_runtime.CONTAINERD_2, node_runtime.CONTAINERD_17, node_runtime.CRI_O


def missing(runtime: str = CONTAINERD_2, driver: str = CGROUPFS) -> str:
    """Why no node can run here; empty when one can."""
    if os.geteuid() != 0:
        return "a real node needs root"
    for tool in ("runc", "ip"):
        if shutil.which(tool) is None:
            return f"no {tool} on this machine: install Debian's packages runc, iproute2 and busybox-static"
    if not image.BUSYBOX.is_file():
        return f"no {image.BUSYBOX} on this machine: install Debian's package busybox-static"
    absent = [name for name in NEEDED if not (assets.node_folder() / name).is_file()]
    if absent:
        return f"no {', '.join(absent)} built: run `python -m tools.assets node` first"
    absent_runtime = node_runtime.missing(runtime)
    if absent_runtime:
        return absent_runtime
    if driver == SYSTEMD and not Path("/run/systemd/system").is_dir():
        return "systemd does not run this machine"
    if not (CGROUPS / "cpu").is_dir() and not (CGROUPS / "cgroup.controllers").is_file():
        return f"no cgroups at {CGROUPS}"
    return ""


PlaneFactory = Callable[[Sequence[str]], AbstractContextManager[ControlPlane]]


class Node:
    """Where the running node is."""

    def __init__(
        self, plane: ControlPlane, folder: Path, runtime: str, driver: str, nri_folder: Path | None = None
    ) -> None:
        self.plane = plane
        self.runtime = runtime
        self.driver = driver
        self.folder = folder
        self.name = NODE
        self.kubelet_root = folder / "kubelet"
        self.kubelet_url = f"https://{ADDRESS}:{KUBELET_PORT}"
        self.runtime_program = node_runtime.program(runtime)
        self.runtime_socket = folder / "run" / f"{self.runtime_program}.sock"
        self.nri_socket = (nri_folder or folder / "nri") / "nri.sock"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.commands: dict[str, list[str]] = {}

    def start(self, name: str) -> None:
        binaries = f"{node_runtime.folder_of(self.runtime)}:{assets.node_folder()}"
        path = f"{binaries}:{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                self.commands[name],
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, "PATH": path},
            )

    def stop(self, name: str) -> None:
        process = self.processes.pop(name, None)
        if process is None:
            return
        process.terminate()
        try:
            process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(timeout=10)

    def ctr(self, *args: str) -> str:
        """Run containerd's own client."""
        command = [str(node_runtime.folder_of(self.runtime) / "ctr"), "-a", str(self.runtime_socket), "-n", "k8s.io"]
        timeout = patience_s(60)
        return subprocess.run([*command, *args], check=True, capture_output=True, text=True, timeout=timeout).stdout


def _network(folder: Path) -> str:
    ipam = {
        "type": "host-local",
        "dataDir": str(folder / "ipam"),
        "ranges": [[{"subnet": SUBNET}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    bridge = {"type": "bridge", "bridge": BRIDGE, "isGateway": True, "ipMasq": False, "ipam": ipam}
    return json.dumps({"cniVersion": "1.0.0", "name": "nodenet", "plugins": [bridge]})


def _kubelet(folder: Path, runtime_socket: Path, driver: str) -> str:
    return json.dumps(
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": ADDRESS,
            "port": KUBELET_PORT,
            "readOnlyPort": 0,
            "healthzPort": 30248,
            "healthzBindAddress": "127.0.0.1",
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "cgroupDriver": driver,
            "failCgroupV1": False,
            "failSwapOn": False,
            "containerRuntimeEndpoint": f"unix://{runtime_socket}",
            "enforceNodeAllocatable": ["pods"],
            "evictionHard": {"nodefs.available": "1%", "imagefs.available": "1%", "memory.available": "50Mi"},
            "imageMinimumGCAge": "8760h",
            "resolvConf": "",
            "maxPods": 110,
            "podLogsDir": str(folder / "podlogs"),
            "volumePluginDir": str(folder / "kubelet" / "volumeplugins"),
            "makeIPTablesUtilChains": False,
            "nodeStatusUpdateFrequency": "10s",
        }
    )


def _ip(*args: str, check: bool = True) -> None:
    subprocess.run(["ip", *args], check=check, capture_output=True)


@contextlib.contextmanager
def running(
    extra_args: Sequence[str] = (),
    runtime: str = CONTAINERD_2,
    *,
    driver: str = CGROUPFS,
    plane: PlaneFactory = controlplane.running,
    nri_folder: Path | None = None,
) -> Iterator[Node]:
    """`extra_args` are for the API server, `plane` starts it. NRI's socket is in the node's folder by default."""
    reason = missing(runtime, driver)
    if reason:
        raise RuntimeError(reason)
    with _turn():
        yield from _running(extra_args, runtime, driver, plane, nri_folder)


@contextlib.contextmanager
def _turn() -> Iterator[None]:
    """Until no other process of this machine has a node; the kernel gives the turn on when its holder ends."""
    with (Path(tempfile.gettempdir()) / "koord-real-node.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _running(
    extra_args: Sequence[str], runtime: str, driver: str, start_plane: PlaneFactory, nri_folder: Path | None
) -> Iterator[Node]:
    # A short path: containerd's sockets lie below it, and their names are limited to 108 characters.
    folder = Path(tempfile.mkdtemp(prefix="kn-"))
    with start_plane(("--kubelet-preferred-address-types=InternalIP,Hostname", *extra_args)) as plane:
        node = Node(plane, folder, runtime, driver, nri_folder)
        try:
            _boot(node)
            yield node
        finally:
            _clean(node)


def _boot(node: Node) -> None:
    folder, binaries = node.folder, assets.node_folder()
    for name in ("run", "cni", "nri/plugins", "nri/conf.d", "podlogs", "kubelet"):
        (folder / name).mkdir(parents=True)
    node_runtime.configure(node.runtime, folder, node.nri_socket, node.driver)
    (folder / "cni" / "10-bridge.conflist").write_text(_network(folder))
    (folder / "kubelet.json").write_text(_kubelet(folder, node.runtime_socket, node.driver))
    _ip("link", "del", BRIDGE, check=False)
    _ip("link", "add", BRIDGE, "type", "bridge")
    _ip("addr", "add", f"{ADDRESS}/24", "dev", BRIDGE)
    _ip("link", "set", BRIDGE, "up")
    node.commands = {
        node.runtime_program: node_runtime.command(node.runtime, folder),
        "kubelet": [
            str(binaries / "kubelet"),
            *("--config", str(folder / "kubelet.json"), "--kubeconfig", str(node.plane.kubeconfig)),
            *("--root-dir", str(node.kubelet_root), "--cert-dir", str(folder / "pki")),
            *("--hostname-override", NODE, "--node-ip", ADDRESS),
        ],
    }
    node.start(node.runtime_program)
    _until(node, node.runtime_program, node.runtime_socket.exists, 30)
    image.write(folder / "bb.tar")
    if node.runtime == CRI_O:
        node_runtime.copy_image(folder, folder / "bb.tar")
    else:
        node.ctr("images", "import", str(folder / "bb.tar"))
    node.start("kubelet")
    _until(node, "kubelet", lambda: _is_ready(node.plane), 60)


def _is_ready(plane: ControlPlane) -> bool:
    try:
        found = json.loads(plane.get(f"/api/v1/nodes/{NODE}"))
    except OSError:
        return False
    conditions = found.get("status", {}).get("conditions", ())
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def _until(node: Node, name: str, wanted: object, seconds: float) -> None:
    assert callable(wanted)
    seconds = patience_s(seconds)
    deadline = time.monotonic() + seconds
    while not wanted():
        process = node.processes[name]
        if process.poll() is not None or time.monotonic() > deadline:
            log = (node.folder / f"{name}.log").read_text()[-3000:]
            raise RuntimeError(f"{name} is not ready after {seconds:.0f} s (exit {process.poll()}):\n{log}")
        time.sleep(0.1)


def _clean(node: Node) -> None:
    """kubelet first, or it would start its pods again."""
    node.stop("kubelet")
    # In the trees of cgroup v1's controllers, or in the one of cgroup v2.
    trees = [CGROUPS, *(path for path in CGROUPS.iterdir() if path.is_dir())]
    groups = [path for tree in trees for name in ("kubepods", "kubepods.slice") if (path := tree / name).is_dir()]
    for _ in range(50):
        # os.walk and not rglob: groups go while they are walked, as containerd removes those of pods that ended.
        found = (Path(folder) / "cgroup.procs" for group in groups for folder, _, _ in os.walk(group))
        alive = {int(pid) for file in found for pid in _lines(file)}
        if not alive:
            break
        for pid in alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)
    node.stop(node.runtime_program)
    subprocess.run(["pkill", "-9", "-f", f"containerd-shim-runc-v2.*{node.folder}"], check=False)
    for line in reversed(Path("/proc/mounts").read_text().splitlines()):
        where = line.split()[1]
        if where.startswith((str(node.folder), "/run/netns/cni-")):
            subprocess.run(["umount", "-l", where], check=False, capture_output=True)
    for path in Path("/run/netns").glob("cni-*"):
        path.unlink(missing_ok=True)
    for group in groups:
        for folder, _, _ in os.walk(group, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(folder)
    _ip("link", "del", BRIDGE, check=False)
    shutil.rmtree(node.folder, ignore_errors=True)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:  # the group is gone
        return []


def main() -> None:
    """Run until Ctrl-C."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with running() as node:
        print(f"ready: KUBECONFIG={node.plane.kubeconfig} kubelet root {node.kubelet_root}", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()


if __name__ == "__main__":
    main()
