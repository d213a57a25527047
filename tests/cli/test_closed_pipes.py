"""A command whose reader goes away ends without a word."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(("koord", "--help"), id="help"),
        pytest.param(("koord", "manifests"), id="manifests"),
        pytest.param(("koord", "crds"), id="crds"),
        pytest.param(
            ("koord", "up", "--demo", "colocation", "--nodes", "1", "--duration", "1h", "-o", "json"), id="demo"
        ),
        pytest.param(("koord", "up", "--nodes", "0", "--components", "", "--listen", "127.0.0.1:0"), id="up"),
        pytest.param(("koord.cli.daemons.koord_scheduler", "--help"), id="program"),
    ],
)
def test_a_reader_that_goes_away(command: tuple[str, ...], tmp_path: object) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-m", *command],
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env={**os.environ, "XDG_STATE_HOME": str(tmp_path)},
            timeout=300,
        )
    finally:
        os.close(writer)
    assert done.stderr == ""
    assert done.returncode == 1
