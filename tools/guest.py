"""A small virtual machine with a kernel of its own, to run tests where this machine's kernel has only cgroup v1, no
core scheduling or no SMT.

Its kernel is the asset `python -m tools.assets kernel`. The guest sees chosen folders of this machine, read-only and at
the same paths, so the same Python and the same tests run in it. It has four processors on two cores, a disk for limits
of input and output, and no network. QEMU translates every instruction (no KVM is asked for), so it is slow: some ten
times slower than the machine itself.
"""

from __future__ import annotations

import gzip
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tools import assets, image

QEMU = "qemu-system-x86_64"
EXIT = "koord-guest-exit:"
DISK_BYTES = 64 * 2**20
_MOUNT = "trans=virtio,version=9p2000.L,ro,msize=262144,cache=loose"


def kernel() -> Path:
    return assets.kernel_folder() / "bzImage"


def missing() -> str:
    """Why no guest can run here; empty when one can."""
    if shutil.which(QEMU) is None:
        return f"no {QEMU} on this machine: install Debian's package qemu-system-x86"
    if not kernel().is_file():
        return "no kernel for a guest in the cache: run `python -m tools.assets kernel` first"
    if not image.BUSYBOX.is_file():
        return f"no {image.BUSYBOX} on this machine: install Debian's package busybox-static"
    return ""


def run(command: str, shared: Sequence[Path], *, seconds: float, memory_mib: int = 1536) -> tuple[int | None, str]:
    """Run a shell command in a fresh guest: its exit code, None when it did not end in time, and the console's text."""
    with tempfile.TemporaryDirectory() as work:
        initrd = Path(work) / "initrd.gz"
        initrd.write_bytes(gzip.compress(_initrd(_script(command, shared)), compresslevel=1))
        disk = Path(work) / "disk"
        with disk.open("wb") as file:
            file.truncate(DISK_BYTES)
        words = [QEMU, "-accel", "tcg,thread=multi", "-cpu", "max,vendor=GenuineIntel", "-M", "q35"]
        words += ["-m", str(memory_mib), "-smp", "4,sockets=1,cores=2,threads=2", "-nographic", "-no-reboot"]
        words += ["-net", "none", "-kernel", str(kernel()), "-initrd", str(initrd)]
        words += ["-drive", f"file={disk},if=virtio,format=raw"]
        words += ["-append", "console=ttyS0 panic=-1 loglevel=3 psi=1"]
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


def _script(command: str, shared: Sequence[Path]) -> str:
    mounts = "\n".join(
        f"mkdir -p '/new{path}' && mount -t 9p -o {_MOUNT} share{number} '/new{path}'"
        for number, path in enumerate(shared)
    )
    return f"""#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin HOME=/root
mkdir -p /proc /sys /dev /new
mount -t proc proc /proc; mount -t sysfs sysfs /sys; mount -t devtmpfs devtmpfs /dev
mount -t tmpfs -o size=50% tmpfs /new
{mounts}
cd /new
mkdir -p proc sys dev tmp run root etc var
for name in bin sbin lib lib64; do [ -e $name ] || ln -s usr/$name $name; done
echo 'root:x:0:0:root:/root:/bin/sh' >etc/passwd; echo '127.0.0.1 localhost' >etc/hosts
mount --bind /proc proc; mount --bind /sys sys; mount --bind /dev dev
mount -t cgroup2 cgroup2 sys/fs/cgroup
echo '+cpu +cpuset +memory +io +pids' >sys/fs/cgroup/cgroup.subtree_control
ifconfig lo 127.0.0.1 up
cat >command <<'END-OF-COMMAND'
{command}
END-OF-COMMAND
chroot /new /bin/sh /command
echo "{EXIT} $?"
poweroff -f
"""


def _initrd(script: str) -> bytes:
    """A file system of the first moment, in the format of cpio that kernels read."""
    found = bytearray()
    entries: list[tuple[str, int, bytes]] = [("bin", 0o40755, b"")]
    entries += [("bin/busybox", 0o100755, image.BUSYBOX.read_bytes()), ("init", 0o100755, script.encode())]
    for number, (name, mode, content) in enumerate([*entries, ("TRAILER!!!", 0, b"")], 1):
        fields = (number, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name) + 1, 0)
        found += b"070701" + b"".join(b"%08x" % field for field in fields) + name.encode() + b"\0"
        found += bytes(-len(found) % 4) + content
        found += bytes(-len(found) % 4)
    return bytes(found)
