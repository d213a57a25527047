"""containerd without a kubelet: it imports an image and runs its containers, for tests of images."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tools import assets

NAMESPACE = "koord-image-test"
CGROUPS = Path("/sys/fs/cgroup")
START_S = 60
RUN_S = 120
_NEEDED = ("containerd", "containerd-shim-runc-v2", "ctr")


def missing() -> str:
    """Return why no container can run here; empty when one can."""
    if os.geteuid() != 0:
        return "containerd needs root"
    if shutil.which("runc") is None:
        return "no runc on this machine: install Debian's package runc"
    absent = [name for name in _NEEDED if not (assets.node_folder() / name).is_file()]
    return f"no {', '.join(absent)} built: run `python -m tools.assets node` first" if absent else ""


class ContainerRuntime:
    """A running containerd. Containers have a read-only root and the user of their image."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._count = 0

    def import_image(self, archive: Path) -> list[str]:
        """Import an archive and return the names of all images."""
        self._ctr("images", "import", str(archive))
        return self._ctr("images", "list", "-q").split()

    def run(self, image: str, *command: str) -> str:
        """Run a container to its end and return its output. Raise with its errors where it fails."""
        return self._ctr("run", "--rm", *self._flags(()), image, self._next_id(), *command)

    @contextlib.contextmanager
    def running(self, image: str, *command: str, config: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
        """Run a container on the host's network with a folder at /config until the block ends."""
        mount = f"type=bind,src={config},dst=/config,options=rbind:ro"
        name = self._next_id()
        with log.open("wb") as out:
            process = subprocess.Popen(
                self._command("run", "--rm", "--net-host", *self._flags((mount,)), image, name, *command),
                stdout=out,
                stderr=subprocess.STDOUT,
                env=self._environment(),
            )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)  # ctr hands it on to the container
                process.wait(timeout=30)

    def _flags(self, mounts: Sequence[str]) -> list[str]:
        scratch = "type=tmpfs,src=tmpfs,dst=/tmp,options=mode=1777"
        return ["--read-only", *(flag for mount in (scratch, *mounts) for flag in ("--mount", mount))]

    def _next_id(self) -> str:
        self._count += 1
        return f"c{self._count}"

    def _ctr(self, *args: str) -> str:
        done = subprocess.run(
            self._command(*args),
            capture_output=True,
            text=True,
            timeout=RUN_S,
            env=self._environment(),
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"ctr {' '.join(args)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done.stdout

    def _command(self, *args: str) -> list[str]:
        socket = str(self.folder / "containerd.sock")
        return [str(assets.node_folder() / "ctr"), "-a", socket, "-n", NAMESPACE, *args]

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "PATH": f"{assets.node_folder()}:{os.environ.get('PATH', '')}:/usr/sbin:/sbin"}

    def start(self) -> subprocess.Popen[bytes]:
        config = self.folder / "containerd.toml"
        config.write_text(
            f'version = 3\nroot = "{self.folder}/root"\nstate = "{self.folder}/state"\n'
            f"disabled_plugins = ['io.containerd.grpc.v1.cri', 'io.containerd.cri.v1.images', "
            f"'io.containerd.cri.v1.runtime', 'io.containerd.nri.v1.nri']\n"
            f'[grpc]\n  address = "{self.folder}/containerd.sock"\n'
        )
        with (self.folder / "containerd.log").open("wb") as log:
            process = subprocess.Popen(
                [str(assets.node_folder() / "containerd"), "-c", str(config)],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment(),
            )
        deadline = time.monotonic() + START_S
        while not (self.folder / "containerd.sock").exists():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(
                    f"containerd does not start:\n{(self.folder / 'containerd.log').read_text()[-3000:]}"
                )
            time.sleep(0.05)
        return process


@contextlib.contextmanager
def running() -> Iterator[ContainerRuntime]:
    """Run containerd in a file system in memory until the block ends. No mount, cgroup or process stays behind."""
    folder = Path(tempfile.mkdtemp(prefix="ki-"))  # short: names of sockets are limited to 108 characters
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(folder)], check=True)
    try:
        runtime = ContainerRuntime(folder)
        process = runtime.start()
        try:
            yield runtime
        finally:
            process.terminate()
            process.wait(timeout=30)
    finally:
        for line in reversed(Path("/proc/mounts").read_text().splitlines()):
            if (where := Path(line.split()[1])).is_relative_to(folder):
                subprocess.run(["umount", "-l", str(where)], check=True)
        for group in (CGROUPS / NAMESPACE, *CGROUPS.glob(f"*/{NAMESPACE}")):
            with contextlib.suppress(FileNotFoundError):
                group.rmdir()
        folder.rmdir()
