"""Build HAMi-core's library from its sources with their own script: python -m tools.hami_core SOURCES [LIBRARY].

It needs a CUDA toolkit (CUDA_HOME, /usr/local/cuda by default), gcc and cmake. The library's path is printed, for the
variable KOORD_HAMI_CORE of `python -m bench gpu`. Nothing of it is part of koord.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

SCRIPT = "build.sh"
LIBRARY = "libvgpu.so"
_BUILD_S = 600


def build(sources: Path, cuda: Path, library: Path | None = None) -> Path | str:
    """Build in the folder of the sources; return the library, copied to `library` if given, or what went wrong."""
    script = sources / SCRIPT
    if not script.is_file():
        return f"{script} does not exist: {sources} does not hold HAMi-core's sources"
    if not (cuda / "bin" / "nvcc").is_file():
        return f"{cuda} holds no CUDA toolkit: set CUDA_HOME"
    path = f"{cuda / 'bin'}:{os.environ.get('PATH', '')}"
    # Its CMakeLists.txt asks for a policy that newer versions of cmake have removed.
    environment = {**os.environ, "PATH": path, "CUDA_HOME": str(cuda), "CMAKE_POLICY_VERSION_MINIMUM": "3.5"}
    done = subprocess.run(
        ["bash", f"./{SCRIPT}"],
        check=False,
        cwd=sources,
        env=environment,
        capture_output=True,
        text=True,
        timeout=_BUILD_S,
    )
    made = sorted(sources.rglob(LIBRARY))
    if done.returncode or not made:
        said = (done.stdout + done.stderr).strip().splitlines()[-5:]
        return f"{script} ended with {done.returncode}: {' | '.join(said)}"
    if library is None:
        return made[0]
    library.parent.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copy2(made[0], library))


def main(argv: list[str]) -> int:
    if not 1 <= len(argv) <= 2:
        print(__doc__, file=sys.stderr)
        return 2
    cuda = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))
    found = build(Path(argv[0]), cuda, Path(argv[1]) if len(argv) == 2 else None)
    if isinstance(found, str):
        print(found, file=sys.stderr)
        return 1
    print(found.resolve())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
