"""Build an image: fetch, unpack, compile, check and pack. Three layers, so that an upgrade sends the last one alone."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
import tomllib
from pathlib import Path
from typing import Any

import msgspec

from koord.version import BUILD_FILE
from tools import wheel as project_wheel
from tools.assets import cache_root
from tools.oci_image import bill, debian, wheels
from tools.oci_image.bytecode import compiled
from tools.oci_image.declaration import NAME_PREFIX, PYTHON, USER, USER_ID, Flavour
from tools.oci_image.elf import missing_libraries
from tools.oci_image.layout import ImageArchive, LayerArchive, pack
from tools.oci_image.tree import Entry, Tree, folder, join, link, to_tar

ROOT = project_wheel.ROOT
REVISION_LABEL = "org.opencontainers.image.revision"
TITLES = ("Debian packages", "Python libraries", "koord")
# Layers below koord's own have one time for ever: the next commit must not change their digests.
_LIBRARY_TIME_S = 315532800  # 1980-01-01, the first that a zip archive can hold
_PATH = "/usr/local/bin:/usr/bin:/usr/sbin"


class ImageError(Exception):
    """The image would not work, or cannot be built here."""


class Contents(msgspec.Struct, frozen=True):
    """What an image holds, before it is packed: a tree and a time for each of TITLES, and the bill's rows."""

    version: str
    commit: str
    layers: tuple[Tree, ...]
    times_s: tuple[int, ...]
    components: tuple[bill.Component, ...]
    architecture: str


class Product(msgspec.Struct, frozen=True):
    """A built image and its bill of materials, with the names of their files."""

    image: ImageArchive
    bill: str
    stem: str
    reference: str


def cache_folder() -> Path:
    return cache_root().parent / "image"


def commit_time_s() -> int:
    """Return the time that goes into the image: SOURCE_DATE_EPOCH where it is set, otherwise that of the commit."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    if given:
        return int(given)
    git = ["git", "log", "-1", "--format=%ct"]
    done = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ImageError(f"no commit to take the time from ({done.stderr.strip()}): set SOURCE_DATE_EPOCH")
    return int(done.stdout)


def project_version() -> str:
    version: str = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    return version


def gather(flavour: Flavour, cache: Path) -> Contents:
    """Return the contents of a flavour. The network is used only where the cache lacks something."""
    architecture = debian.machine_architecture()
    if architecture not in wheels.MACHINES:
        raise ImageError(f"images are built for {' and '.join(wheels.MACHINES)}, not for {architecture}")
    pyproject = (ROOT / "pyproject.toml").read_text()
    system, packages = _debian_layer(flavour, architecture, cache / "packages")
    needed = wheels.requirements(pyproject, flavour.extras)
    machine = wheels.MACHINES[architecture]
    pins = wheels.parse_constraints((ROOT / "constraints.txt").read_text(), machine)
    found = wheels.collect(needed, pins, machine, cache / "wheels")
    libraries = join(wheels.unpack(one.path) for one in found)
    project, own = _project_layer(flavour, pyproject)
    layers = (system, libraries, project)
    missing = missing_libraries(join(layers))
    if missing:
        lines = "\n".join(f"  {library}, needed by {paths[0]}" for library, paths in missing.items())
        raise ImageError(f"shared libraries are missing from the image:\n{lines}")
    listed = (bill.of_wheel(one.name, one.version, one.sha256, wheels.metadata(one.path)) for one in found)
    return Contents(
        version=own.version,
        commit=msgspec.json.decode(project[f"{wheels.SITE}/koord/{BUILD_FILE}"].content)["commit"],
        layers=tuple(compiled(layers, architecture)),
        times_s=(_LIBRARY_TIME_S, _LIBRARY_TIME_S, commit_time_s()),
        components=(*packages, *listed, own),
        architecture=architecture,
    )


def build(flavour: Flavour, cache: Path) -> Product:
    contents = gather(flavour, cache)
    time_s = contents.times_s[-1]
    reference = f"{NAME_PREFIX}/{flavour.name}:{contents.version}"
    image = pack(
        [
            LayerArchive(title, to_tar(tree, layer_time_s))
            for title, tree, layer_time_s in zip(TITLES, contents.layers, contents.times_s, strict=True)
        ],
        architecture=contents.architecture,
        config=run_config(flavour),
        names=(reference,),
        labels={**labels(flavour, contents.version), REVISION_LABEL: contents.commit},
        time_s=time_s,
    )
    text = bill.print_bill(flavour.name, contents.version, image.digest, contents.components, time_s)
    return Product(image, text, f"{flavour.name}-{contents.version}-image", reference)


def run_config(flavour: Flavour) -> dict[str, Any]:
    """Return how a container of the image runs unless its pod says otherwise."""
    return {
        "User": f"{USER_ID}:{USER_ID}",
        "Env": [f"PATH={_PATH}", "PYTHONUTF8=1", "PYTHONDONTWRITEBYTECODE=1", f"HOME=/home/{USER}"],
        "Cmd": list(flavour.command),
        "WorkingDir": "/",
        "StopSignal": "SIGTERM",
    }


def labels(flavour: Flavour, version: str) -> dict[str, str]:
    return {
        "org.opencontainers.image.title": flavour.name,
        "org.opencontainers.image.version": version,
        "org.opencontainers.image.licenses": "Apache-2.0",
    }


def _debian_layer(flavour: Flavour, architecture: str, cache: Path) -> tuple[Tree, list[bill.Component]]:
    locked = debian.read_lock(architecture)
    absent = [package.name for package in flavour.packages if package.name not in locked]
    if absent:
        raise ImageError(f"{debian.LOCK.name} has no {', '.join(absent)} for {architecture}: run `make image-lock`")
    debian.fetch([locked[package.name] for package in flavour.packages], cache)
    trees, components = [debian.merged_links(), _accounts()], []
    for package in flavour.packages:
        one = locked[package.name]
        control = debian.read_control(cache / one.file_name)
        files = debian.unpack(package, cache / one.file_name)
        trees += [files, debian.status_file(one.name, control)]
        components.append(bill.of_package(one, control, files))
    tree = join(trees)
    return tree | debian.certificate_bundle(tree), components


def _project_layer(flavour: Flavour, pyproject: str) -> tuple[Tree, bill.Component]:
    project = tomllib.loads(pyproject)["project"]
    scripts: dict[str, str] = project["scripts"]
    # A flavour may name a program that this version of the project has not; it must have one at least.
    named = {name: scripts[name] for name in flavour.programs or scripts if name in scripts}
    if not named:
        raise ImageError(f"the project has none of the programs {', '.join(flavour.programs)}")
    place = Path(tempfile.mkdtemp(prefix="koord-image-wheel-"))
    try:
        path = project_wheel.build_wheel(place)
        fields = wheels.metadata(path)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        own = bill.of_wheel(fields["Name"], fields["Version"], digest, fields)
        tree = wheels.unpack(path, flavour.modules_left_out)
    finally:
        shutil.rmtree(place)
    tree |= {f"{wheels.PROGRAMS}/{name}": wheels.program_file(point) for name, point in named.items()}
    return tree, own


def _accounts() -> Tree:
    """Return users, names and the folders that are not files of a package."""
    passwd = f"root:x:0:0:root:/:/sbin/nologin\n{USER}:x:{USER_ID}:{USER_ID}:koord:/home/{USER}:/sbin/nologin\n"
    return {
        "etc/passwd": Entry(passwd.encode()),
        "etc/group": Entry(f"root:x:0:\n{USER}:x:{USER_ID}:\n".encode()),
        "etc/nsswitch.conf": Entry(b"passwd: files\ngroup: files\nhosts: files dns\n"),
        f"home/{USER}": folder(0o700, USER_ID),
        "tmp": folder(0o1777),
        "var/tmp": folder(0o1777),
        "usr/bin/python3": link(f"python{PYTHON}"),
        "run": folder(),
        "var/run": link("/run"),
    }
