"""A container runtime that does what NVIDIA's does before runc creates a container, for machines without NVIDIA's.

It stands before runc under runc's name. A container whose environment names cards in NVIDIA_VISIBLE_DEVICES gets their
device files and the driver's libraries; any other gets neither, so a container without that variable sees no card.
"""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path
from typing import Any

VISIBLE, LIBRARIES = "NVIDIA_VISIBLE_DEVICES", "LD_LIBRARY_PATH"
# Of the driver, for every card.
SHARED = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")


def install(folder: Path, runc: str, libraries: list[str]) -> None:
    """Write the program `runc` into the folder. Its settings lie beside it: shims pass no environment on."""
    folder.mkdir(parents=True)
    (folder / "runtime.json").write_text(json.dumps({"runc": runc, "libraries": libraries}))
    program = folder / "runc"
    program.write_text(f"#!{sys.executable} -ISE\n{Path(__file__).read_text()}")
    program.chmod(0o755)


def add_cards(spec: dict[str, Any], libraries: list[str]) -> None:
    """Give the container of an OCI specification the cards that its environment names."""
    process = spec["process"]
    named = dict(one.partition("=")[::2] for one in process.get("env", ())).get(VISIBLE, "")
    if not named:
        return
    files = [Path("/dev", name) for name in (*(f"nvidia{minor}" for minor in named.split(",")), *SHARED)]
    for file in files:
        if not file.exists():
            continue
        number = file.stat().st_rdev
        kind = "c" if stat.S_ISCHR(file.stat().st_mode) else "b"
        device = {"type": kind, "major": os.major(number), "minor": os.minor(number)}
        spec["linux"].setdefault("devices", []).append({"path": str(file), "fileMode": 0o666, **device})
        allowed = {"allow": True, "access": "rwm", **device}
        spec["linux"].setdefault("resources", {}).setdefault("devices", []).append(allowed)
    for path in libraries:
        mount = {"source": path, "destination": path, "type": "bind", "options": ["rbind", "ro"]}
        spec.setdefault("mounts", []).append(mount)
    process["env"].append(f"{LIBRARIES}={':'.join(libraries)}")


def main(argv: list[str]) -> None:
    settings = json.loads((Path(argv[0]).parent / "runtime.json").read_text())
    if "create" in argv:
        config = Path(argv[argv.index("--bundle") + 1], "config.json")
        spec = json.loads(config.read_text())
        add_cards(spec, settings["libraries"])
        config.write_text(json.dumps(spec))
    os.execv(settings["runc"], [settings["runc"], *argv[1:]])


if __name__ == "__main__":
    main(sys.argv)
