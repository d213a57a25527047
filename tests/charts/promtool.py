"""This module runs the promtool that `python -m tools.assets promtool` builds."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tools import assets


def promtool_binary() -> Path:
    return assets.promtool_folder() / "promtool"


def run_promtool(*args: str, text: str = "") -> tuple[int, str]:
    """Run promtool with `text` as its input; return its exit status and what it printed."""
    done = subprocess.run(
        [promtool_binary(), *args], input=text, capture_output=True, text=True, timeout=300, check=False
    )
    return done.returncode, done.stdout + done.stderr
