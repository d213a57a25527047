"""The files of a release say what they are, and the chart's archive is the same from each build."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import subprocess
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from koord import __version__
from tools.oci_image.build import REVISION_LABEL
from tools.oci_image.layout import LayerArchive, pack
from tools.oci_image.tree import Entry, to_tar
from tools.release.build import CHECKSUMS, ReleaseError, chart_archive, check_files, checksum_lines
from tools.wheel import ROOT

VERSION, COMMIT = "1.2.0", "c" * 40


def write_wheel(folder: Path, version: str = VERSION, commit: str = COMMIT) -> None:
    with zipfile.ZipFile(folder / f"koord-{version}-py3-none-any.whl", "w") as archive:
        archive.writestr(f"koord-{version}.dist-info/METADATA", f"Name: koord\nVersion: {version}\n")
        archive.writestr("koord/build.json", json.dumps({"commit": commit}))


def write_image(folder: Path, tag: str = VERSION, version: str = VERSION, commit: str = COMMIT) -> None:
    image = pack(
        [LayerArchive("all", to_tar({"a": Entry(b"1")}, 0))],
        architecture="amd64",
        config={},
        names=(f"example/koord:{tag}",),
        labels={"org.opencontainers.image.version": version, REVISION_LABEL: commit},
        time_s=9,
    )
    (folder / f"koord-{VERSION}-image.tar").write_bytes(image.content)


def write_chart(folder: Path, version: str = VERSION, app_version: str = VERSION) -> None:
    text = f"version: {version}\nappVersion: {app_version}\n"
    (folder / "koord.tgz").write_bytes(gzip.compress(to_tar({"koord/Chart.yaml": Entry(text.encode())}, 0)))


def write_bill(folder: Path, version: str = VERSION) -> None:
    (folder / "koord-image.cdx.json").write_text(json.dumps({"metadata": {"component": {"version": version}}}))


def write_all(folder: Path) -> None:
    for write in (write_wheel, write_image, write_chart, write_bill):
        write(folder)


def test_files_of_one_build_pass(tmp_path: Path) -> None:
    write_all(tmp_path)
    check_files(tmp_path, VERSION, COMMIT)


def test_each_file_that_is_of_something_else_is_named(tmp_path: Path) -> None:
    write_all(tmp_path)
    wrongs: list[tuple[Callable[[], None], str]] = [
        (lambda: write_wheel(tmp_path, commit="d"), "whl is of version 1.2.0 and commit d"),
        (lambda: write_image(tmp_path, commit="d"), "image.tar is of version 1.2.0 and commit d"),
        (lambda: write_image(tmp_path, version="9.9.9"), "image.tar is of version example/koord:1.2.0"),
        (lambda: write_image(tmp_path, tag="9.9.9"), "image.tar is of version example/koord:9.9.9"),
        (lambda: write_chart(tmp_path, version="9.9.9"), r"koord.tgz \(version\) is of version 9.9.9"),
        (lambda: write_chart(tmp_path, app_version="9.9.9"), r"koord.tgz \(appVersion\) is of version 9.9.9"),
        (lambda: write_bill(tmp_path, version="9.9.9"), "cdx.json is of version 9.9.9"),
    ]
    for wrong, words in wrongs:
        wrong()
        with pytest.raises(ReleaseError, match=words):
            check_files(tmp_path, VERSION, COMMIT)
        write_all(tmp_path)


def test_checksums_are_those_that_sha256sum_reads(tmp_path: Path) -> None:
    write_all(tmp_path)
    (tmp_path / CHECKSUMS).write_text(checksum_lines(tmp_path))
    command = ["sha256sum", "--check", "--strict", CHECKSUMS]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 4), done.stderr


def test_the_chart_has_every_file_and_the_same_bytes() -> None:
    name, content = chart_archive(ROOT, 9)
    assert name == f"koord-{__version__}.tgz"
    assert hashlib.sha256(content).digest() == hashlib.sha256(chart_archive(ROOT, 9)[1]).digest()
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        names = {info.name for info in archive if info.isfile()}
        assert {info.mtime for info in archive} == {9}
    chart = ROOT / "charts" / "koord"
    assert names == {f"koord/{path.relative_to(chart)}" for path in chart.rglob("*") if path.is_file()}
