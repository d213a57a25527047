"""Build the images of koord: `python -m tools.oci_image [--flavour all|agent]`. docs/image.md says the rest."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tools.oci_image import debian
from tools.oci_image.build import ROOT, ImageError, build, cache_folder, gather
from tools.oci_image.bytecode import CompileError
from tools.oci_image.declaration import FLAVOURS, every_package
from tools.oci_image.dockerfile import DOCKERFILE, print_dockerfile
from tools.oci_image.tree import ConflictError, to_folder
from tools.oci_image.wheels import WheelError
from tools.wheel import WheelError as ProjectWheelError

_MB = 1_000_000


def write_images(flavours: list[str], folder: Path) -> None:
    """Write the archive and the bill of materials of each flavour, and print what they are, by name in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in flavours:
        product = build(FLAVOURS[name], cache_folder())
        archive, materials = folder / f"{product.stem}.tar", folder / f"{product.stem}.cdx.json"
        archive.write_bytes(product.image.content)
        materials.write_text(product.bill)
        unpacked, packed = product.image.unpacked_bytes / _MB, product.image.packed_bytes / _MB
        print(f"{product.reference} {product.image.digest}")
        print(f"  {archive.name}: {unpacked:.1f} MB unpacked, {packed:.1f} MB packed")
        print(f"  {materials.name}")


def write_root(flavour: str, folder: Path) -> None:
    """Write the files of an image into a folder, each with the owner and time that it has in the image."""
    if folder.exists():
        raise ImageError(f"{folder} exists already, and what lies in it would be in the image")
    contents = gather(FLAVOURS[flavour], cache_folder())
    folder.mkdir(parents=True)
    for tree, time_s in zip(contents.layers, contents.times_s, strict=True):
        to_folder(tree, folder, time_s)


def write_lock() -> None:
    """Lock the versions that apt prefers now. Packages of other architectures stay as they are."""
    architecture = debian.machine_architecture()
    kept = [one for one in debian.parse_lock(debian.LOCK.read_text()) if one.architecture not in (architecture, "all")]
    debian.LOCK.write_text(debian.print_lock([*kept, *debian.newest(every_package(), cache_folder() / "packages")]))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.oci_image", description=__doc__)
    parser.add_argument("--flavour", choices=sorted(FLAVOURS), help="build one flavour alone")
    parser.add_argument("--to", type=Path, default=ROOT / "dist", help="folder of the archives (dist)")
    parser.add_argument("--root", type=Path, help="write the files of --flavour into this new folder instead")
    parser.add_argument("--lock", action="store_true", help="lock the newest Debian packages instead")
    parser.add_argument("--dockerfile", action="store_true", help="write the Dockerfile again instead")
    given = parser.parse_args()
    if given.root and not given.flavour:
        parser.error("--root needs --flavour")
    try:
        if given.lock:
            write_lock()
        elif given.dockerfile:
            DOCKERFILE.write_text(print_dockerfile())
        elif given.root:
            write_root(given.flavour, given.root)
        else:
            write_images([given.flavour] if given.flavour else list(FLAVOURS), given.to)
    except (ImageError, CompileError, ConflictError, WheelError, ProjectWheelError, debian.PackageError) as error:
        print(f"image: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
