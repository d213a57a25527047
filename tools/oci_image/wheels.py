"""Wheels: which of constraints.txt the project needs in the image, their download with hashes, and what is inside."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path

import msgspec
from packaging.requirements import Requirement
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import canonicalize_name, parse_wheel_filename

from tools.oci_image.declaration import PYTHON, UNUSED_LIBRARIES, is_left_out
from tools.oci_image.elf import without_sections
from tools.oci_image.tree import Entry, Tree

SITE = f"usr/local/lib/python{PYTHON}/dist-packages"
PROGRAMS = "usr/local/bin"
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
_GLIBC_MINOR = 36  # of Debian 12
_VERSION = tuple(int(part) for part in PYTHON.split("."))


class WheelError(Exception):
    """A wheel cannot be had, or is not what constraints.txt says."""


class Pin(msgspec.Struct, frozen=True):
    """One requirement of constraints.txt: its version and the hashes of its files."""

    name: str
    version: str
    hashes: frozenset[str]

    @property
    def line(self) -> str:
        """Return what pip reads. The marker is decided already: pip would decide it for the Python that builds."""
        return " ".join([f"{self.name}=={self.version}", *(f"--hash=sha256:{one}" for one in sorted(self.hashes))])


class Wheel(msgspec.Struct, frozen=True):
    """A wheel that is in the cache."""

    name: str
    version: str
    path: Path
    sha256: str


def parse_constraints(text: str, machine: str) -> dict[str, Pin]:
    """Return the pins that hold in the image by name: a library may be pinned once for each version of Python."""
    environment = _environment(machine)
    pins = {}
    for block in re.split(r"\n(?=[A-Za-z0-9])", text):
        requirement, *rest = block.split("\\\n")
        if "==" not in requirement:
            continue
        one = Requirement(requirement)
        if _applies(one, environment, ""):
            (specifier,) = one.specifier
            hashes = frozenset(re.findall(r"--hash=sha256:([0-9a-f]{64})", " ".join(rest)))
            pins[_name(one)] = Pin(_name(one), specifier.version, hashes)
    return pins


def requirements(pyproject: str, extras: Iterable[str]) -> list[Requirement]:
    """Return what the project needs with some extras, those that extras name of each other followed."""
    project = tomllib.loads(pyproject)["project"]
    found = [Requirement(text) for text in project["dependencies"]]
    waiting, seen = list(extras), set[str]()
    while waiting:
        extra = waiting.pop()
        if extra in seen:
            continue
        seen.add(extra)
        for text in project["optional-dependencies"][extra]:
            one = Requirement(text)
            if one.name == project["name"]:
                waiting.extend(one.extras)
            else:
                found.append(one)
    return found


def collect(needed: Iterable[Requirement], pins: Mapping[str, Pin], machine: str, cache: Path) -> list[Wheel]:
    """Return the wheels of the requirements and of all that these require but UNUSED_LIBRARIES."""
    environment = _environment(machine)
    found: dict[str, Wheel] = {}
    asked: set[str] = set()  # which extras of a library were asked for
    waiting = list(needed)
    while waiting:
        names = {_name(one) for one in waiting if _applies(one, environment, "")}
        new = sorted(names - found.keys())
        unpinned = [name for name in new if name not in pins]
        if unpinned:
            raise WheelError(f"constraints.txt does not pin {', '.join(unpinned)}: run `make lock`")
        found |= {wheel.name: wheel for wheel in fetch([pins[name] for name in new], machine, cache)}
        following: list[Requirement] = []
        for one in waiting:
            if not _applies(one, environment, ""):
                continue
            for extra in ("", *sorted(one.extras)):
                if (key := f"{_name(one)}[{extra}]") not in asked:
                    asked.add(key)
                    declared = metadata(found[_name(one)].path).get_all("Requires-Dist", [])
                    following.extend(
                        _unconditional(next_one)
                        for next_one in map(Requirement, declared)
                        if _applies(next_one, environment, extra) and _name(next_one) not in UNUSED_LIBRARIES
                    )
        waiting = following
    return sorted(found.values(), key=lambda wheel: wheel.name)


def fetch(pins: list[Pin], machine: str, cache: Path) -> list[Wheel]:
    """Return a wheel of each pin. pip downloads those that the cache has not, and compares their hashes."""
    cache.mkdir(parents=True, exist_ok=True)
    supported = supported_tags(machine)
    absent = [pin for pin in pins if _cached(pin, supported, cache) is None]
    if absent:
        listed = cache / "requirements.txt"
        listed.write_text("".join(f"{pin.line}\n" for pin in absent))
        command = [
            *(sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps"),
            *("--require-hashes", "--only-binary", ":all:", "--implementation", "cp", "--python-version", PYTHON),
            *("--abi", "cp" + PYTHON.replace(".", ""), "--abi", "abi3", "--abi", "none"),
            *(flag for name in [*platforms(machine), "any"] for flag in ("--platform", name)),
            *("-r", str(listed), "-d", str(cache)),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise WheelError(f"pip download ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    wheels = []
    for pin in pins:
        wheel = _cached(pin, supported, cache)
        if wheel is None:
            raise WheelError(f"no wheel of {pin.name} {pin.version} for Python {PYTHON} on {machine}")
        wheels.append(wheel)
    return wheels


def platforms(machine: str) -> list[str]:
    """Return the platforms that Debian 12's C library runs, the newest first."""
    named = [f"manylinux_2_{minor}_{machine}" for minor in range(_GLIBC_MINOR, 4, -1)]
    return [*named, *(f"{old}_{machine}" for old in ("manylinux2014", "manylinux2010", "manylinux1"))]


def supported_tags(machine: str) -> list[Tag]:
    """Return the tags of wheels that run in the image, the best first."""
    names = platforms(machine)
    return [*cpython_tags(_VERSION, platforms=names), *compatible_tags(_VERSION, f"cp{PYTHON}", names)]


def unpack(path: Path, modules_left_out: Sequence[str] = ()) -> Tree:
    """Return the files of a wheel that stay in the image. Programs are made by `program_file`."""
    tree: Tree = {}
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            if info.is_dir() or is_left_out(info.filename, modules_left_out):
                continue
            if ".data/" in info.filename.partition("/")[0] + "/":
                raise WheelError(f"{path.name}: {info.filename} is for a place outside of the library folder")
            tree[f"{SITE}/{info.filename}"] = Entry(without_sections(archive.read(info)))
    return tree


def metadata(path: Path) -> Message:
    with zipfile.ZipFile(path) as archive:
        (name,) = (one for one in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", one))
        return HeaderParser().parsestr(archive.read(name).decode())


def program_file(entry_point: str) -> Entry:
    """Return a program that calls an entry point. It writes no bytecode and reads no library of a user's home."""
    module, _, function = entry_point.partition(":")
    text = f"#!/usr/bin/python{PYTHON} -sB\nimport sys\n\nfrom {module} import {function}\n\nsys.exit({function}())\n"
    return Entry(text.encode(), mode=0o755)


def _cached(pin: Pin, supported: list[Tag], cache: Path) -> Wheel | None:
    """Return the best wheel of a pin that lies in the cache, or None. A file with another hash is none."""
    order = {tag: rank for rank, tag in enumerate(supported)}
    best: tuple[int, Wheel] | None = None
    for path in sorted(cache.glob("*.whl")):
        name, version, _, tags = parse_wheel_filename(path.name)
        if name != pin.name or str(version) != pin.version:
            continue
        rank = min((order[tag] for tag in tags if tag in order), default=-1)
        if rank < 0 or (best is not None and best[0] <= rank):
            continue
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        if digest in pin.hashes:
            best = (rank, Wheel(pin.name, pin.version, path, digest))
    return None if best is None else best[1]


def _environment(machine: str) -> dict[str, str]:
    return {
        "implementation_name": "cpython",
        "implementation_version": f"{PYTHON}.0",
        "os_name": "posix",
        "platform_machine": machine,
        "platform_python_implementation": "CPython",
        "platform_release": "",
        "platform_system": "Linux",
        "platform_version": "",
        "python_full_version": f"{PYTHON}.0",
        "python_version": PYTHON,
        "sys_platform": "linux",
    }


def _applies(one: Requirement, environment: Mapping[str, str], extra: str) -> bool:
    return one.marker is None or one.marker.evaluate({**environment, "extra": extra})


def _unconditional(one: Requirement) -> Requirement:
    """Return the requirement without its marker, which was decided already, with the extra that it was asked with."""
    one.marker = None
    return one


def _name(one: Requirement) -> str:
    return str(canonicalize_name(one.name))
