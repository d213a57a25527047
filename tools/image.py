"""A container image made of Debian's static busybox, as an OCI archive: no registry is needed to run pods."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tools.oci_image.layout import LayerArchive, pack
from tools.oci_image.tree import Entry, Tree, link, to_tar

BUSYBOX = Path("/bin/busybox")
NAMES = ("registry.local/bb:1", "registry.local/pause:1")
# Ends at once when it is told to, unlike a shell that waits for its child.
WAIT = 'trap "exit 0" TERM INT; while :; do sleep 3600 & wait $!; done'


def _files(busybox: Path) -> Tree:
    applets = subprocess.run([str(busybox), "--list"], capture_output=True, text=True, check=True).stdout.split()
    return {
        **{f"bin/{applet}": link("busybox") for applet in applets},
        "bin/busybox": Entry(busybox.read_bytes(), mode=0o755),
        "etc/passwd": Entry(b"root:x:0:0:root:/:/bin/sh\n"),
    }


def write(path: Path, busybox: Path = BUSYBOX) -> None:
    """One layer under all of NAMES."""
    image = pack(
        [LayerArchive("busybox", to_tar(_files(busybox), 0))],
        architecture="amd64",
        config={"Entrypoint": ["/bin/sh", "-c", WAIT], "Env": ["PATH=/bin"]},
        names=NAMES,
        labels={},
        time_s=0,
    )
    path.write_bytes(image.content)
