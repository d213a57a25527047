"""The archive, the bill, the Dockerfile and the ELF files of the image, without a container."""

from __future__ import annotations

import ctypes
import gzip
import hashlib
import importlib.util
import io
import json
import sys
import tarfile
from email.parser import HeaderParser
from pathlib import Path
from typing import Any

import pytest

from tools.oci_image.bill import declared_licences, of_package, of_wheel, print_bill
from tools.oci_image.build import run_config
from tools.oci_image.debian import Control, Locked
from tools.oci_image.declaration import FLAVOURS
from tools.oci_image.dockerfile import DOCKERFILE, print_dockerfile
from tools.oci_image.elf import missing_libraries, needed_libraries, without_sections
from tools.oci_image.layout import LayerArchive, pack
from tools.oci_image.tree import Entry, to_tar

LAYERS = [LayerArchive("below", to_tar({"a": Entry(b"1")}, 0)), LayerArchive("above", to_tar({"b": Entry(b"2")}, 9))]
IMAGE = pack(
    LAYERS, architecture="amd64", config={"User": "7:7"}, names=("example/koord:1",), labels={"title": "t"}, time_s=9
)


def test_every_digest_leads_to_its_blob() -> None:
    with tarfile.open(fileobj=io.BytesIO(IMAGE.content)) as archive:
        files = {info.name: archive.extractfile(info) for info in archive if info.isreg()}
    blobs = {name: held.read() for name, held in files.items() if held is not None}
    for name, content in blobs.items():
        if name.startswith("blobs/sha256/"):
            assert hashlib.sha256(content).hexdigest() == name.removeprefix("blobs/sha256/")

    def blob(described: dict[str, Any]) -> bytes:
        content = blobs[f"blobs/sha256/{described['digest'].removeprefix('sha256:')}"]
        assert len(content) == described["size"]
        return content

    assert json.loads(blobs["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
    (named,) = json.loads(blobs["index.json"])["manifests"]
    assert named["annotations"]["io.containerd.image.name"] == "example/koord:1"
    assert named["digest"] == IMAGE.digest
    manifest = json.loads(blob(named))
    config = json.loads(blob(manifest["config"]))
    assert config["config"]["User"] == "7:7"
    assert config["created"] == "1970-01-01T00:00:09Z"
    unpacked = [gzip.decompress(blob(layer)) for layer in manifest["layers"]]
    assert unpacked == [layer.tar for layer in LAYERS]
    assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(tar).hexdigest()}" for tar in unpacked]
    assert IMAGE.unpacked_bytes == sum(map(len, unpacked))


COPYRIGHT = """Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: lib+x

Files: *
Copyright: someone
License: GPL-2 or BSD-3-clause

Files: zip/*
 more/*
License: Zlib
 The text of it.
 .
 License: no field

Files: debian/*
License: packaging

License: GPL-2
 The text of it.
"""


def test_licences_are_read_from_machine_readable_files_alone() -> None:
    assert declared_licences("This package has\n\nFiles: *\nLicense: none\n") == ""
    assert declared_licences("Format: 1.0\n\nFiles: *\nLicense: MIT\n") == "MIT"
    assert of_package(Locked("a", "1", "amd64", "a" * 64), Control("Package: a\n"), {}).licence == ""


def test_the_bill_names_packages_and_wheels() -> None:
    locked, control = Locked("lib+x", "1:2~3", "amd64", "a" * 64), Control("Package: lib+x\nMaintainer: Someone\n")
    package = of_package(locked, control, {"usr/share/doc/lib+x/copyright": Entry(COPYRIGHT.encode())})
    wheel = of_wheel("one", "1.0", "b" * 64, HeaderParser().parsestr("Name: one\nLicense-Expression: MIT\n"))
    bill = json.loads(print_bill("koord", "1", "sha256:" + "c" * 64, [wheel, package], 9))
    assert [row["purl"] for row in bill["components"]] == [
        "pkg:deb/debian/lib%2Bx@1%3A2~3?arch=amd64&distro=debian-12",
        "pkg:pypi/one@1.0",
    ]
    assert bill["components"][0]["licenses"] == [{"license": {"name": "(GPL-2 or BSD-3-clause) AND Zlib"}}]
    assert bill["components"][1]["licenses"] == [{"license": {"name": "MIT"}}]
    assert bill["metadata"]["timestamp"] == "1970-01-01T00:00:09Z"


def test_the_dockerfile_is_what_the_declaration_gives() -> None:
    text = DOCKERFILE.read_text()
    assert text == print_dockerfile(), "run `python -m tools.oci_image --dockerfile`"
    for name, flavour in FLAVOURS.items():
        assert f"make image-root FLAVOUR={name} " in text
        assert json.dumps(run_config(flavour)["Cmd"]) in text


@pytest.fixture
def library() -> bytes:
    if sys.platform != "linux" or sys.maxsize < 2**32:
        pytest.skip("msgspec's library is a 64-bit ELF file on Linux alone")
    found = importlib.util.find_spec("msgspec._core")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).read_bytes()


def test_a_library_still_loads_without_its_sections(library: bytes, tmp_path: Path) -> None:
    kept = without_sections(library)
    assert len(kept) < len(library)
    path = tmp_path / "kept.so"
    path.write_bytes(kept)
    assert ctypes.CDLL(str(path)).PyInit__core
    assert needed_libraries(kept) == needed_libraries(library)
    assert without_sections(kept) == kept
    assert without_sections(b"text") == b"text"


def test_a_library_that_nobody_brings_is_found(library: bytes) -> None:
    tree = {"usr/lib/one.so": Entry(library), "etc/passwd": Entry(b"root")}
    assert missing_libraries(tree)["libc.so.6"] == ["usr/lib/one.so"]
    assert "libc.so.6" not in missing_libraries(tree | {"usr/lib/libc.so.6": Entry(b"")})
