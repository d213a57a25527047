"""The CUDA driver of tests: a C library of the driver's name in a folder of its own, first in the loader's path."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("fake_cuda.c")


def build_fake_driver(folder: Path) -> Path:
    """Return the library; the test is skipped where no C compiler is installed."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler, which builds the driver of tests")
    library = folder / "libcuda.so.1"
    subprocess.run([compiler, "-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-o", library, SOURCE], check=True)
    return library
