"""A small virtual machine with a kernel of its own, to run tests where this machine's kernel has only cgroup v1, no
core scheduling or no SMT.

`python -m tools.guest` takes Debian's kernel into the cache. That of `python -m tools.assets kernel` has core
scheduling, and takes a while to build. The guest sees chosen folders of this machine, read-only and at the same paths,
so the same Python and the same tests run in it. It has four processors on two cores, a disk for limits of input and
output, and no network. Its first process is a shell, or this machine's systemd where that is asked for. QEMU
translates every instruction (no KVM is asked for), so it is slow: some ten times slower than the machine itself.
"""

from __future__ import annotations

import gzip
import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from graphlib import TopologicalSorter
from pathlib import Path

from tools import assets, image

PACKAGE = "linux-image-amd64"  # Debian's name for its newest kernel
QEMU = "qemu-system-x86_64"
# What the guest needs where the kernel has it as a module.
MODULES = (
    *("virtio", "virtio_ring", "virtio_pci_legacy_dev", "virtio_pci_modern_dev", "virtio_pci", "virtio_blk"),
    *("netfs", "fscache", "9pnet", "9pnet_virtio", "9p"),
    *("overlay", "llc", "stp", "bridge"),  # of containers and of the node's address
)
EXIT = "koord-guest-exit:"
DISK_BYTES = 64 * 2**20
_DEPENDS = re.compile(rb"(?<=\0)depends=([\w,]*)\0")  # in a module's own description
_MOUNT = "trans=virtio,version=9p2000.L,ro,msize=262144,cache=loose"
SYSTEMD = "/usr/lib/systemd/systemd"
_SERVICE = "koord-guest.service"
_SHELL = "chroot /new /bin/sh /first"
# Everything of systemd but its manager is left out: no other unit is wanted by this one. Where the machine has an
# identity, systemd does not take this for its first start, at which it enables services.
_SYSTEMD = f"""mkdir -p etc/systemd/system
echo 0123456789abcdef0123456789abcdef >etc/machine-id
cat >etc/systemd/system/{_SERVICE} <<'END-OF-UNIT'
[Unit]
DefaultDependencies=no
[Service]
ExecStart=/bin/sh /first
StandardOutput=tty
StandardError=tty
TTYPath=/dev/console
END-OF-UNIT
exec switch_root /new {SYSTEMD}"""


def debian_kernel() -> Path:
    """Return the folder of a kernel (`vmlinuz`) and of the modules that it needs: a new one when those change."""
    return assets.cache_root() / f"guest-debian-{hashlib.sha256(' '.join(MODULES).encode()).hexdigest()[:8]}"


def missing(kernel: Path) -> str:
    """Why no guest with this kernel can run here; empty when one can."""
    if shutil.which(QEMU) is None:
        return f"no {QEMU} on this machine: install Debian's package qemu-system-x86"
    if not (kernel / "vmlinuz").is_file():
        command = "tools.guest" if kernel == debian_kernel() else "tools.assets kernel"
        return f"no kernel for a guest in {kernel}: run `python -m {command}` first"
    if not image.BUSYBOX.is_file():
        return f"no {image.BUSYBOX} on this machine: install Debian's package busybox-static"
    return ""


def fetch(target: Path) -> None:
    """Kernel and modules out of Debian's package, which is not installed."""
    said = subprocess.run(["apt-cache", "depends", PACKAGE], check=True, capture_output=True, text=True).stdout
    package = next(line.split()[-1] for line in said.splitlines() if "Depends: linux-image-" in line)
    partial = target.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as work:
        subprocess.run(["apt-get", "download", "-q", package], check=True, cwd=work, stdout=sys.stderr)
        archive = next(Path(work).glob("*.deb"))
        subprocess.run(["dpkg-deb", "-x", str(archive), f"{work}/x"], check=True)
        shutil.copy(next(Path(work).glob("x/boot/vmlinuz-*")), partial / "vmlinuz")
        for name in MODULES:
            found = next(Path(work).glob(f"x/lib/modules/*/kernel/**/{name}.ko"), None)
            if found is not None:  # newer kernels have some of them built in
                shutil.copy(found, partial)
    partial.rename(target)


def run(
    command: str,
    shared: Sequence[Path],
    *,
    kernel: Path,
    seconds: float,
    memory_mib: int = 1536,
    systemd: bool = False,
) -> tuple[int | None, str]:
    """Run a shell command in a fresh guest: its exit code, None when it did not end in time, and the console's text.

    With `systemd` the command is a service of systemd.
    """
    with tempfile.TemporaryDirectory() as work:
        initrd = Path(work) / "initrd.gz"
        modules = {path.stem: path.read_bytes() for path in sorted(kernel.glob("*.ko"))}
        script = _script(command, shared, load_order(modules), systemd=systemd)
        initrd.write_bytes(gzip.compress(_initrd(script, modules), compresslevel=1))
        disk = Path(work) / "disk"
        with disk.open("wb") as file:
            file.truncate(DISK_BYTES)
        words = [QEMU, "-accel", "tcg,thread=multi", "-cpu", "max,vendor=GenuineIntel", "-M", "q35"]
        words += ["-m", str(memory_mib), "-smp", "4,sockets=1,cores=2,threads=2", "-nographic", "-no-reboot"]
        words += ["-net", "none", "-kernel", str(kernel / "vmlinuz"), "-initrd", str(initrd)]
        words += ["-drive", f"file={disk},if=virtio,format=raw"]
        words += ["-append", f"console=ttyS0 panic=-1 loglevel=3 psi=1 systemd.unit={_SERVICE} systemd.show_status=0"]
        for number, path in enumerate(shared):
            words += ["-virtfs", f"local,path={path},mount_tag=share{number},security_model=none,readonly=on"]
            words[-1] += ",multidevs=remap"
        try:
            done = subprocess.run(
                words, stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds, check=False
            ).stdout
        except subprocess.TimeoutExpired as late:
            done = late.stdout or b""
    text = done.decode(errors="replace").replace("\r", "")
    code = next((line.partition(EXIT)[2].strip() for line in text.splitlines() if EXIT in line), "")
    return (int(code) if code.isdecimal() else None), text


def load_order(modules: Mapping[str, bytes]) -> list[str]:
    """Return the names in the order in which modules need each other, as each says itself: kernels differ in it, even
    those of one series (virtio needs virtio_ring since Debian's 6.1.192, and before it was the other way round).
    """
    needed = {name: _DEPENDS.search(content) for name, content in modules.items()}
    graph = {
        name: [one.decode() for one in found[1].split(b",")] if found is not None and found[1] else []
        for name, found in needed.items()
    }
    return [name for name in TopologicalSorter(graph).static_order() if name in modules]


def _script(command: str, shared: Sequence[Path], modules: Sequence[str], *, systemd: bool) -> str:
    mounts = "\n".join(
        f"mkdir -p '/new{path}' && mount -t 9p -o {_MOUNT} share{number} '/new{path}'"
        for number, path in enumerate(shared)
    )
    return f"""#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin HOME=/root
mkdir -p /proc /sys /dev /new
mount -t proc proc /proc; mount -t sysfs sysfs /sys; mount -t devtmpfs devtmpfs /dev
for module in {" ".join(modules)}; do insmod /modules/$module.ko; done
mount -t tmpfs -o size=50% tmpfs /new
{mounts}
cd /new
mkdir -p proc sys dev tmp run root etc var
for name in bin sbin lib lib64; do [ -e $name ] || ln -s usr/$name $name; done
echo 'root:x:0:0:root:/root:/bin/sh' >etc/passwd; echo '127.0.0.1 localhost' >etc/hosts
for name in proc sys dev; do mount --move /$name $name; done
mount -t cgroup2 cgroup2 sys/fs/cgroup
echo '+cpu +cpuset +memory +io +pids' >sys/fs/cgroup/cgroup.subtree_control
ifconfig lo 127.0.0.1 up
cat >command <<'END-OF-COMMAND'
{command}
END-OF-COMMAND
cat >first <<'END-OF-FIRST'
/bin/sh /command
echo "{EXIT} $?"
/bin/busybox poweroff -f
END-OF-FIRST
{_SYSTEMD if systemd else _SHELL}
"""


def _initrd(script: str, modules: Mapping[str, bytes]) -> bytes:
    """A file system of the first moment, in the format of cpio that kernels read."""
    found = bytearray()
    entries: list[tuple[str, int, bytes]] = [("bin", 0o40755, b""), ("modules", 0o40755, b"")]
    entries += [("bin/busybox", 0o100755, image.BUSYBOX.read_bytes()), ("init", 0o100755, script.encode())]
    entries += [(f"modules/{name}.ko", 0o100644, content) for name, content in modules.items()]
    for number, (name, mode, content) in enumerate([*entries, ("TRAILER!!!", 0, b"")], 1):
        fields = (number, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name) + 1, 0)
        found += b"070701" + b"".join(b"%08x" % field for field in fields) + name.encode() + b"\0"
        found += bytes(-len(found) % 4) + content
        found += bytes(-len(found) % 4)
    return bytes(found)


def main() -> None:
    target = debian_kernel()
    if not target.is_dir():
        fetch(target)
    print(target)


if __name__ == "__main__":
    main()
