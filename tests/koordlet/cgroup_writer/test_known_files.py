"""Every file that strategies name is in the host's knob table, and the agent imports no heavy package."""

from __future__ import annotations

import subprocess
import sys

from koord.host.cgroup.knob import KNOBS
from koord.koordlet.strategies.registry import STRATEGIES


def test_files_of_strategies_are_in_the_table() -> None:
    assert {file for strategy in STRATEGIES for file in strategy.files} <= KNOBS.keys()


def test_the_executor_brings_no_heavy_library() -> None:
    code = "import sys, koord.koordlet.cgroup_writer.executor, koord.host.capability; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"numpy", "aiohttp", "yaml", "cryptography", "click"} & set(loaded)
