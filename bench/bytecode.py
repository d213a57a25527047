"""Programs are started as pip and the images install them: with bytecode of every module, so that none is compiled."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import koord

_WRITES_NONE = "PYTHONDONTWRITEBYTECODE"


@functools.cache
def environment(module: str) -> dict[str, str]:
    """Return the environment in which this module, and what it imports, is found compiled."""
    folder = tempfile.mkdtemp(prefix="koord-bytecode-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    found = {name: value for name, value in os.environ.items() if name != _WRITES_NONE}
    found["PYTHONPYCACHEPREFIX"] = folder
    subprocess.run([sys.executable, "-m", "compileall", "-q", str(Path(koord.__path__[0]))], env=found, check=True)
    subprocess.run([sys.executable, "-c", f"import {module}"], env=found, check=True)
    return found
