"""How long `koord up --nodes 3` takes from the command to its ready line, with everything installed."""

from __future__ import annotations

import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench import bytecode

TRIES = 5


def _once(folder: Path) -> float:
    command = [sys.executable, "-m", "koord", "up", "--nodes", "3", "--listen", "127.0.0.1:0"]
    environ = bytecode.environment("koord.cli.main")
    started = time.perf_counter()
    process = subprocess.Popen(
        [*command, "--kubeconfig", str(folder / "k")],
        env=environ,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("koord: ready"):
            took = time.perf_counter() - started
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=20)
            return took
    raise RuntimeError(f"koord up ended with {process.wait()}")


def run() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        times = sorted(_once(Path(folder)) for _ in range(TRIES))
    return {"tries": TRIES, "median_s": statistics.median(times), "worst_s": times[-1]}
