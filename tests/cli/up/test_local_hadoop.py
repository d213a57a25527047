"""`koord up --demo yarn` finds Hadoop in a distribution, in a folder of jars and where `make test-yarn` put it; what is
missing it says in one line.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from koord.cli.up.local_hadoop import HadoopPrograms, find_hadoop
from koord.cli.up.up import up

JAR = "hadoop-yarn-server-resourcemanager-3.4.2.jar"


def java_in(folder: Path) -> dict[str, str]:
    """Return an environment in which there is a Java, and nothing else."""
    program = folder / "jdk" / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    return {"PATH": str(program.parent), "HOME": str(folder)}


def jar_in(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / JAR).touch()
    return folder


def test_a_distribution_is_found_with_its_folders_of_jars(tmp_path: Path) -> None:
    environ = {**java_in(tmp_path), "HADOOP_HOME": str(tmp_path / "hadoop")}
    share = jar_in(tmp_path / "hadoop" / "share" / "hadoop" / "yarn").parent
    (share / "common" / "lib").mkdir(parents=True)
    found = find_hadoop(environ)
    assert isinstance(found, HadoopPrograms)
    assert found.classpath == (f"{share}/common/*", f"{share}/common/lib/*", f"{share}/yarn/*")
    assert found.java == f"{tmp_path}/jdk/bin/java"


def test_a_folder_of_jars_and_the_newest_that_was_fetched_are_found(tmp_path: Path) -> None:
    environ = java_in(tmp_path)
    cache = tmp_path / ".cache" / "koord" / "assets"
    old, new = jar_in(cache / "yarn-old"), jar_in(cache / "yarn-new")
    jar_in(cache / "yarn-newest.partial")
    os.utime(old, (1, 1))
    plain = jar_in(tmp_path / "jars")
    cases: list[tuple[dict[str, str], Path]] = [
        ({}, new),
        ({"HADOOP_HOME": str(plain)}, plain),
        ({"KOORD_ASSETS": str(cache)}, new),
    ]
    for given, wanted in cases:
        found = find_hadoop({**environ, **given})
        assert isinstance(found, HadoopPrograms)
        assert (found.home, found.classpath) == (str(wanted), (f"{wanted}/*",))


@pytest.mark.parametrize(
    ("environ", "text"),
    [
        pytest.param({"PATH": "/nowhere"}, "there is no java here: install Java 17 or newer", id="java"),
        pytest.param({"JAVA_HOME": "/nowhere"}, "JAVA_HOME=/nowhere has no bin/java", id="java-home"),
        pytest.param({}, "there is no Hadoop here: set HADOOP_HOME to an installation", id="hadoop"),
        pytest.param({"HADOOP_HOME": "/nowhere"}, "HADOOP_HOME=/nowhere has no hadoop-yarn-server", id="hadoop-home"),
    ],
)
def test_what_is_missing_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], text: str
) -> None:
    for name in ("JAVA_HOME", "HADOOP_HOME", "KOORD_ASSETS", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {**java_in(tmp_path), **environ}.items():
        monkeypatch.setenv(name, value)
    refused = CliRunner().invoke(up, ["--demo", "yarn"])
    assert refused.exit_code == 1
    [line] = refused.output.splitlines()
    assert text in line
