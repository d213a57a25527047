"""A real etcd and kube-apiserver on loopback for tests, benchmarks and `make gen`.

As a context manager it starts both in a temporary folder and stops them; as a program it runs until Ctrl-C and
prints the kubeconfig's path.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import secrets
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

from tools import assets

ADMIN_GROUP = "system:masters"


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


def patience_s(seconds: float) -> float:
    """Return how long to wait for what takes less on this machine: KOORD_PATIENCE_S where it is more, as in a guest."""
    return max(seconds, float(os.environ.get("KOORD_PATIENCE_S", "0")))


class ControlPlane:
    """Where a running control plane is and how to reach it."""

    def __init__(self, folder: Path, url: str, token: str) -> None:
        self.folder = folder
        self.url = url
        self.token = token
        self.kubeconfig = folder / "kubeconfig"
        self.ca = folder / "certs" / "apiserver.crt"
        self.account_key = folder / "sa.key"
        self.pids: dict[str, int] = {}
        self.commands: dict[str, list[str]] = {}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str) -> None:
        """Start `etcd` or `kube-apiserver` as it was started first; its log goes on where it was."""
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                self.commands[name],
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_end_with_parent,  # noqa: PLW1509
            )
        self.processes[name], self.pids[name] = process, process.pid

    def kill(self, name: str) -> None:
        """End it in the middle of whatever it does."""
        self.processes[name].kill()
        self.processes[name].wait(timeout=10)

    def wait(self, seconds: float = 90) -> None:
        """Until the server answers that it is ready."""
        _wait(self, list(self.processes.values()), seconds)

    def ssl(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.ca))
        context.check_hostname = False
        return context

    def get(self, path: str) -> bytes:
        request = urllib.request.Request(self.url + path, headers={"Authorization": f"Bearer {self.token}"})
        with urllib.request.urlopen(request, context=self.ssl(), timeout=10) as answer:
            body: bytes = answer.read()
            return body


def _end_with_parent() -> None:
    """Ask the kernel to end this child when its parent dies, however it dies: a killed test leaves nothing behind."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, signal.SIGKILL)


def _kubeconfig(url: str, ca: Path, token: str) -> str:
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "real", "cluster": {"server": url, "certificate-authority": str(ca)}}],
            "users": [{"name": "admin", "user": {"token": token}}],
            "contexts": [{"name": "real", "context": {"cluster": "real", "user": "admin"}}],
            "current-context": "real",
        }
    )


def _wait(plane: ControlPlane, processes: Sequence[subprocess.Popen[bytes]], seconds: float) -> None:
    seconds = patience_s(seconds)
    deadline = time.monotonic() + seconds
    while True:
        for process in processes:
            if process.poll() is not None:
                log = (plane.folder / f"{Path(str(process.args[0])).name}.log").read_text()[-2000:]  # type: ignore[index]
                raise RuntimeError(f"{process.args!r} ended with {process.returncode}:\n{log}")
        with contextlib.suppress(OSError):
            if plane.ca.exists() and plane.get("/readyz") == b"ok":
                return
        if time.monotonic() > deadline:
            raise RuntimeError(f"kube-apiserver was not ready within {seconds:.0f} s; logs are in {plane.folder}")
        time.sleep(0.1)


@contextlib.contextmanager
def running(
    extra_args: Sequence[str] = (),
    *,
    authorization: str = "AlwaysAllow",
    load: bool = False,
    service_accounts: bool = False,
    controllers: bool = False,
    address: str = "127.0.0.1",
    port: int = 0,
) -> Iterator[ControlPlane]:
    """A fresh control plane; `load` lifts the server's own request limits for benchmarks. With `service_accounts` pods
    need an account, and nobody makes the default ones. With `controllers`, which the caller runs, all of Kubernetes'
    admission is on. Without a `port` a free one is taken.
    """
    binaries = assets.folder()
    folder = Path(tempfile.mkdtemp(prefix="koord-real-"))
    token = secrets.token_hex(16)
    (folder / "tokens.csv").write_text(f'{token},admin,admin,"{ADMIN_GROUP}"\n')
    client, peer, secure = free_port(), free_port(), port or free_port()
    plane = ControlPlane(folder, f"https://{address}:{secure}", token)
    key = plane.account_key
    subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True)
    plane.kubeconfig.write_text(_kubeconfig(plane.url, plane.ca, token))
    plane.kubeconfig.chmod(0o600)
    disabled = [] if controllers else ["TaintNodesByCondition", *([] if service_accounts else ["ServiceAccount"])]
    etcd = [
        str(binaries / "etcd"),
        *("--data-dir", str(folder / "etcd"), "--unsafe-no-fsync", "--log-level", "warn"),
        *(
            "--listen-client-urls",
            f"http://127.0.0.1:{client}",
            "--advertise-client-urls",
            f"http://127.0.0.1:{client}",
        ),
        *(
            "--listen-peer-urls",
            f"http://127.0.0.1:{peer}",
            "--initial-advertise-peer-urls",
            f"http://127.0.0.1:{peer}",
        ),
        *("--initial-cluster", f"default=http://127.0.0.1:{peer}"),
    ]
    apiserver = [
        str(binaries / "kube-apiserver"),
        *("--etcd-servers", f"http://127.0.0.1:{client}", "--secure-port", str(secure)),
        *(
            "--bind-address",
            address,
            "--cert-dir",
            str(folder / "certs"),
            "--token-auth-file",
            str(folder / "tokens.csv"),
        ),
        *("--authorization-mode", authorization, "--service-account-key-file", str(key)),
        *("--service-account-signing-key-file", str(key), "--service-account-issuer", "https://koord.test"),
        *("--service-cluster-ip-range", "10.96.0.0/16", "--allow-privileged=true"),
        *(("--disable-admission-plugins", ",".join(disabled)) if disabled else ()),
    ]
    if load:
        apiserver += ["--enable-priority-and-fairness=false", "--max-requests-inflight", "4000"]
        apiserver += ["--max-mutating-requests-inflight", "4000"]
    plane.commands = {"etcd": etcd, "kube-apiserver": [*apiserver, *extra_args]}
    try:
        for name in plane.commands:
            plane.start(name)
        plane.wait()
        yield plane
    finally:
        for name, process in reversed(plane.processes.items()):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM if name == "etcd" else signal.SIGKILL)
            process.wait(timeout=10)
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--kubeconfig", help="also write the kubeconfig here")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with running() as plane:
        if given.kubeconfig:
            shutil.copy(plane.kubeconfig, given.kubeconfig)
        print(f"ready {plane.url} kubeconfig={given.kubeconfig or plane.kubeconfig}", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()
    sys.exit(0)


if __name__ == "__main__":
    main()
