"""Tenants of one GPU: processes that are started together, with or without an MPS daemon, and what each measured."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

import msgspec

from koord.gpu.driver import CudaDriver, CudaError
from koord.gpu.isolation import GpuLimits, mps_env, pipe_directory
from koord.gpu.mps import CONTROL, MpsControl, MpsServers, MpsSettings
from koord.host.hardware import GpuCard
from koord.host.io_error import IoError
from koord.host.nvml import Nvml

ROOT = Path(__file__).resolve().parent.parent
READY_S = 60.0  # for a process to load the driver and make its context
GIB = 1 << 30


class Tenant(msgspec.Struct, frozen=True, kw_only=True):
    """One process: what it does, its environment, and after how many seconds it is killed (0: never)."""

    kind: str = "load"
    env: Mapping[str, str] = {}
    arguments: tuple[str, ...] = ()
    killed_after_s: float = 0.0
    starts_after_s: float = 0.0


def why_no_card() -> str:
    """Return why nothing can be measured on this machine; "" where it can."""
    driver = CudaDriver.open()
    if isinstance(driver, CudaError):
        return f"no CUDA driver: {driver}"
    count = driver.device_count()
    return f"no card: {count}" if isinstance(count, CudaError) or not count else ""


def why_no_mps() -> str:
    missing = why_no_card()
    if missing:
        return missing
    found = any(os.access(Path(folder, CONTROL), os.X_OK) for folder in os.get_exec_path())
    return "" if found else f"{CONTROL} is not installed"


def first_card() -> GpuCard:
    """Return the first card by NVML; the machine has one, or it would have been told before."""
    nvml = Nvml.open()
    if isinstance(nvml, IoError):
        raise RuntimeError(str(nvml))
    cards = nvml.cards()
    nvml.close()
    if isinstance(cards, IoError):
        raise RuntimeError(str(cards))
    return cards[0]


class MpsSession:
    """One MPS daemon of the first card, as koordlet starts it."""

    def __init__(self, folder: str) -> None:
        self.card = first_card()
        self.folder = folder
        self.control = MpsControl(MpsSettings(folder=folder))

    def start(self) -> None:
        problem = asyncio.run(self.control.start(self.card.minor, self.card.uuid))
        if problem is not None:
            raise RuntimeError(problem)

    def servers(self) -> tuple[int, ...]:
        found = asyncio.run(self.control.servers(self.card.minor))
        return found.pids if isinstance(found, MpsServers) else ()

    def stop(self) -> str | None:
        return asyncio.run(self.control.quit(self.card.minor, wait_s=1))

    def env(self, cores: int | None = None, memory_bytes: int | None = None) -> dict[str, str]:
        """Return what koordlet's hook gives a container with this share."""
        limits = GpuLimits(core_percent=cores, memory_bytes=memory_bytes)
        made = mps_env(limits, pipe_directory(self.folder, self.card.minor))
        if isinstance(made, str):
            raise ValueError(made)
        return dict(made)

    def log(self) -> str:
        """Return the end of what the daemon and its server logged."""
        texts = [path.read_text(errors="replace") for path in sorted(Path(self.folder).glob("*/log/*.log"))]
        return "\n".join(texts)[-1500:]


@contextmanager
def mps_session() -> Iterator[MpsSession]:
    # Short: the path of a socket has at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="mps", dir="/tmp") as folder:
        session = MpsSession(folder)
        session.start()
        try:
            yield session
        finally:
            session.stop()


def run_tenants(tenants: Sequence[Tenant], seconds: float) -> list[dict[str, Any]]:
    """Run the tenants side by side for so long; return what each measured, or the error or signal that ended it."""
    with ExitStack() as files:
        errors = [files.enter_context(tempfile.TemporaryFile("w+", errors="replace")) for _ in tenants]
        found = _run(tenants, errors, seconds)
        for one, file in zip(found, errors, strict=True):
            file.seek(0)
            one["stderr"] = file.read()
        return found


def _run(tenants: Sequence[Tenant], errors: Sequence[IO[str]], seconds: float) -> list[dict[str, Any]]:
    processes = [_spawn(one, file) for one, file in zip(tenants, errors, strict=True)]
    try:
        started = [_ready(process) for process in processes]
        begin = time.monotonic() + 0.2
        for process, one, said in zip(processes, tenants, started, strict=True):
            if said is None and process.stdin is not None:
                lasting = seconds - one.starts_after_s
                process.stdin.write(f"{begin + one.starts_after_s} {lasting}\n")
                process.stdin.flush()
        for process, one in sorted(zip(processes, tenants, strict=True), key=lambda pair: pair[1].killed_after_s):
            if one.killed_after_s:
                time.sleep(max(begin + one.killed_after_s - time.monotonic(), 0.0))
                process.kill()
        return [_result(process, said, seconds + READY_S) for process, said in zip(processes, started, strict=True)]
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
            process.wait()


def _spawn(tenant: Tenant, errors: IO[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "bench.gpu_tenant", tenant.kind, *tenant.arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", **tenant.env},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,  # a file: libraries that log a lot would fill a pipe
        text=True,
    )


def _ready(process: subprocess.Popen[str]) -> dict[str, Any] | None:
    """Wait for the first line of JSON; None means that it is ready, anything else is its end."""
    assert process.stdout is not None
    late = threading.Timer(READY_S, process.kill)
    late.start()
    try:
        for line in process.stdout:
            if line.startswith("{"):
                found: dict[str, Any] = json.loads(line)
                return None if found.get("ready") else found
    finally:
        late.cancel()
    return {"error": f"it ended with {process.wait()} before it was ready"}


def _result(process: subprocess.Popen[str], said: dict[str, Any] | None, limit_s: float) -> dict[str, Any]:
    if said is not None:
        return said
    try:
        output, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        process.kill()
        return {"error": f"it did not end within {limit_s:.0f} s"}
    lines = [line for line in output.splitlines() if line.startswith("{")]
    if not lines:
        return {"error": f"it ended with {process.returncode}"}
    result: dict[str, Any] = json.loads(lines[-1])
    return result


def without_stderr(found: dict[str, Any]) -> dict[str, Any]:
    """Return the result without its log; an error keeps the end of it."""
    kept = {name: value for name, value in found.items() if name != "stderr"}
    if "error" in kept and found.get("stderr"):
        kept["stderr_end"] = found["stderr"][-600:]
    return kept
