"""Build the wheel, install it into empty environments, and start its programs there.

Run as `python -m tools.wheel`. It proves what an editable install cannot: that the wheel carries every file it needs,
that the extras name every library that a program imports, and that the node agent starts without any extra. The
network is used only by pip, to fetch the pinned libraries.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = (
    "koord",
    "kubectl-koord",
    "koord-scheduler",
    "koord-manager",
    "koord-descheduler",
    "koordlet",
    "koord-runtime-proxy",
    "koord-yarn-copilot",
    "koord-yarn-operator",
    "koord-device-daemon",
)
# What starts with the required dependencies alone: a node agent installs none of the server's libraries.
PROGRAMS_WITHOUT_EXTRAS = (
    "koord",
    "kubectl-koord",
    "koordlet",
    "koord-yarn-copilot",
    "koord-yarn-operator",
    "koord-device-daemon",
)
# A program with its own extra alone: what it imports must be in it.
PROGRAM_OF_EXTRA = {
    "scheduler": "koord-scheduler",
    "manager": "koord-manager",
    "descheduler": "koord-descheduler",
    "runtimeproxy": "koord-runtime-proxy",
    "hooks": "koordlet",
}
# What cannot start without its extra.
PROGRAMS_OF_EXTRAS = ("koord-scheduler", "koord-manager")
READY = re.compile(r"koord: ready (\S+) kubeconfig=(\S+)")
READY_TIMEOUT_S = 120
STOP_TIMEOUT_S = 30


class WheelError(Exception):
    """A step failed. The message holds the command and its output."""


def build_wheel(folder: Path) -> Path:
    run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)], cwd=ROOT)
    (wheel,) = folder.glob("koord-*.whl")
    return wheel


def pins_without_hashes(constraints: str) -> str:
    """Return the versions of constraints.txt without hashes: pip demands a hash of every requirement, the wheel's too,
    as soon as one line has any.
    """
    lines = (line.removesuffix("\\").rstrip() for line in constraints.splitlines() if "==" in line)
    return "".join(f"{line}\n" for line in lines)


def install(wheel: Path, extras: str, pins: Path, folder: Path) -> Path:
    """Make an empty environment with the wheel and return its bin folder."""
    venv.create(folder, with_pip=True, clear=True)
    python = folder / "bin" / "python"
    target = f"koord[{extras}] @ {wheel.as_uri()}" if extras else f"koord @ {wheel.as_uri()}"
    run([str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", "-c", str(pins), target], cwd=folder)
    run([str(python), "-m", "pip", "check", "-q", "--disable-pip-version-check"], cwd=folder)
    return folder / "bin"


def start_programs(binaries: Path, programs: tuple[str, ...], cwd: Path) -> None:
    for program in programs:
        for flag in ("--version", "--help"):
            if not run([str(binaries / program), flag], cwd=cwd).strip():
                raise WheelError(f"{program} {flag} printed nothing")


def check_refusals(binaries: Path, programs: tuple[str, ...], cwd: Path) -> None:
    """See that programs without the libraries of their extra say in one line what to install."""
    for program in programs:
        command = [str(binaries / program), "--help"]
        done = subprocess.run(command, cwd=cwd, env=clean_environment(), capture_output=True, text=True, check=False)
        lines = done.stderr.splitlines()
        if done.returncode != 1 or len(lines) != 1 or f"'koord[{program.removeprefix('koord-')}]'" not in lines[0]:
            raise WheelError(f"{program} without its extra ended with {done.returncode}:\n{done.stderr}")


def check_koord_up(binaries: Path, cwd: Path) -> None:
    """Start a cluster, wait until it is ready, read its nodes, and stop it with SIGTERM."""
    kubeconfig = cwd / "kubeconfig"
    command = [
        str(binaries / "koord"),
        "up",
        "--nodes",
        "2",
        "--listen",
        "127.0.0.1:0",
        "--kubeconfig",
        str(kubeconfig),
    ]
    log = cwd / "koord-up.stderr"
    with log.open("w") as stderr:
        process = subprocess.Popen(
            command, cwd=cwd, env=clean_environment(), stdout=subprocess.PIPE, stderr=stderr, text=True
        )
    try:
        signal.alarm(READY_TIMEOUT_S)  # the default action ends this program when the ready line never comes
        assert process.stdout is not None
        if not any(READY.match(line) for line in process.stdout):
            raise WheelError(f"koord up ended with {process.wait()} before it was ready:\n{log.read_text()}")
        signal.alarm(0)
        nodes = run([str(binaries / "koord"), "top", "nodes", "--kubeconfig", str(kubeconfig)], cwd=cwd)
        if "node-0" not in nodes:
            raise WheelError(f"koord top nodes does not show node-0:\n{nodes}")
        process.send_signal(signal.SIGTERM)
        if code := process.wait(STOP_TIMEOUT_S):
            raise WheelError(f"koord up ended with {code} after SIGTERM:\n{log.read_text()}")
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def run(command: list[str], cwd: Path) -> str:
    """Run a command to its end and return its output. Raise WheelError where it fails."""
    done = subprocess.run(command, cwd=cwd, env=clean_environment(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise WheelError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def clean_environment() -> dict[str, str]:
    """Return the environment without what would let a program import from this checkout."""
    return {
        name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV", "KUBECONFIG")
    }


def main() -> int:
    folder = Path(tempfile.mkdtemp(prefix="koord-wheel-"))
    try:
        wheel = build_wheel(folder)
        pins = folder / "pins.txt"
        pins.write_text(pins_without_hashes((ROOT / "constraints.txt").read_text()))
        plain = install(wheel, "", pins, folder / "plain")
        start_programs(plain, PROGRAMS_WITHOUT_EXTRAS, folder)
        check_refusals(plain, PROGRAMS_OF_EXTRAS, folder)
        for extra, program in PROGRAM_OF_EXTRA.items():
            start_programs(install(wheel, extra, pins, folder / extra), (program,), folder)
        binaries = install(wheel, "all", pins, folder / "all")
        start_programs(binaries, PROGRAMS, folder)
        check_koord_up(binaries, folder)
    except WheelError as error:
        print(f"wheel: {error}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(folder)
    print(f"wheel: {wheel.name} installs, {len(PROGRAMS)} programs start, koord up becomes ready and stops")
    return 0


if __name__ == "__main__":
    sys.exit(main())
