"""The wheels of the image: pins that hold in it, what is required of what, and files that stay."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tools.oci_image.build import ROOT
from tools.oci_image.declaration import FLAVOURS
from tools.oci_image.wheels import (
    SITE,
    Pin,
    WheelError,
    collect,
    fetch,
    parse_constraints,
    program_file,
    requirements,
    unpack,
)

PYPROJECT = """
[project]
name = "koord"
dependencies = ["base>=1"]
[project.optional-dependencies]
one = ["first>=1"]
two = ["second; sys_platform != 'win32'"]
all = ["koord[one,two]"]
"""


def make_wheel(folder: Path, name: str, version: str, requires: tuple[str, ...] = (), tag: str = "py3-none-any") -> Pin:
    path = folder / f"{name}-{version}-{tag}.whl"
    lines = [f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {one}" for one in requires)]
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}/__init__.py", f"# {tag}\n")
        archive.writestr(f"{name}/tests/test_it.py", "")
        archive.writestr(f"{name}-{version}.dist-info/METADATA", "\n".join(lines) + "\n")
        archive.writestr(f"{name}-{version}.dist-info/RECORD", "")
    return Pin(name, version, frozenset({hashlib.sha256(path.read_bytes()).hexdigest()}))


def test_extras_of_extras_are_followed() -> None:
    assert [one.name for one in requirements(PYPROJECT, ())] == ["base"]
    assert {one.name for one in requirements(PYPROJECT, ("all",))} == {"base", "first", "second"}


def test_a_library_is_pinned_for_the_python_of_the_image() -> None:
    text = (
        f"one==1.0 ; python_full_version < '3.12' \\\n    --hash=sha256:{'a' * 64}\n"
        f"one==2.0 ; python_full_version >= '3.12' \\\n    --hash=sha256:{'b' * 64}\n"
        f"Two_Parts==3.0 \\\n    --hash=sha256:{'c' * 64} \\\n    --hash=sha256:{'d' * 64}\n"
    )
    pins = parse_constraints(text, "x86_64")
    assert pins["one"] == Pin("one", "1.0", frozenset({"a" * 64}))
    assert pins["two-parts"].line == f"two-parts==3.0 --hash=sha256:{'c' * 64} --hash=sha256:{'d' * 64}"


def test_everything_that_the_project_requires_is_pinned() -> None:
    pins = parse_constraints((ROOT / "constraints.txt").read_text(), "x86_64")
    pyproject = (ROOT / "pyproject.toml").read_text()
    for flavour in FLAVOURS.values():
        for one in requirements(pyproject, flavour.extras):
            pin = pins[one.name.lower()]
            assert pin.hashes
            assert one.specifier.contains(pin.version), one


def test_what_is_required_by_what_is_required_is_collected(tmp_path: Path) -> None:
    pins = [
        make_wheel(tmp_path, "base", "1.0", ("middle[fast]", "windows; sys_platform == 'win32'", "pygments")),
        make_wheel(tmp_path, "middle", "1.0", ("leaf; extra == 'fast'", "other; extra == 'slow'")),
        make_wheel(tmp_path, "leaf", "1.0", ("base",)),
    ]
    found = collect([Requirement("base>=1")], {pin.name: pin for pin in pins}, "x86_64", tmp_path)
    assert [wheel.name for wheel in found] == ["base", "leaf", "middle"]


def test_a_requirement_without_a_pin_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WheelError, match=r"constraints\.txt does not pin base"):
        collect([Requirement("base>=1")], {}, "x86_64", tmp_path)


def test_the_best_wheel_for_the_machine_is_taken(tmp_path: Path) -> None:
    hashes: set[str] = set()
    for tag in ("py3-none-any", "cp311-cp311-manylinux_2_28_x86_64", "cp312-cp312-manylinux_2_28_x86_64"):
        hashes |= make_wheel(tmp_path, "base", "1.0", tag=tag).hashes
    (wheel,) = fetch([Pin("base", "1.0", frozenset(hashes))], "x86_64", tmp_path)
    assert wheel.path.name == "base-1.0-cp311-cp311-manylinux_2_28_x86_64.whl"
    (wheel,) = fetch([Pin("base", "1.0", frozenset(hashes))], "aarch64", tmp_path)
    assert wheel.path.name == "base-1.0-py3-none-any.whl"


def test_tests_and_records_are_left_out(tmp_path: Path) -> None:
    make_wheel(tmp_path, "base", "1.0")
    (path,) = tmp_path.glob("*.whl")
    assert set(unpack(path)) == {f"{SITE}/base/__init__.py", f"{SITE}/base-1.0.dist-info/METADATA"}
    assert set(unpack(path, ("base/*",))) == {f"{SITE}/base-1.0.dist-info/METADATA"}


def test_programs_write_no_bytecode() -> None:
    program = program_file("koord.cli.main:run")
    assert program.content.splitlines()[0] == b"#!/usr/bin/python3.11 -sB"
    assert b"from koord.cli.main import run" in program.content
    assert program.mode == 0o755
