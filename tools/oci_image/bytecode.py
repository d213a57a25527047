"""Bytecode of the image's modules, compiled by the image's own Python, so that the version always fits.

The interpreter runs out of a folder with the image's own loader and C library: neither root nor a container is needed.
Files are `unchecked-hash`: they hold no time, and a start compares nothing. Each layer is compiled in one process and
in the order of paths with a fixed seed, since constants are written in an order that depends on all three.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath

from tools.oci_image.declaration import PYTHON
from tools.oci_image.tree import Entry, Tree, join, to_folder

_TRIPLES = {"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}


class CompileError(Exception):
    """The image's Python did not run, or a module does not compile."""


def compiled(layers: Sequence[Tree], architecture: str) -> list[Tree]:
    """Return each layer with the bytecode of its modules. The first layer holds the interpreter, the last one the
    project, whose text stays for tracebacks; bytecode takes the place of all other text.
    """
    with tempfile.TemporaryDirectory(prefix="koord-image-") as name:
        root = Path(name)
        to_folder(join(layers), root, 0)
        # The interpreter's own layer comes first: what its modules were read from, text or bytecode, decides which
        # strings a process shares, and with it what it writes.
        made = [_bytecode(layers[0], root, architecture)]
        with ThreadPoolExecutor() as pool:  # each waits for a process of its own
            made += pool.map(lambda layer: _bytecode(layer, root, architecture), layers[1:])
        *below, project = (layer | bytecode for layer, bytecode in zip(layers, made, strict=True))
        return [*(_without_text(layer) for layer in below), project]


def _without_text(layer: Tree) -> Tree:
    """Return the layer with each module's bytecode where its text was, which is where Python looks next."""
    kept = {path: entry for path, entry in layer.items() if not path.endswith(".py") and "/__pycache__/" not in path}
    return kept | {f"{path}c": layer[cached_path(path)] for path in layer if path.endswith(".py")}


def _bytecode(layer: Tree, root: Path, architecture: str) -> Tree:
    modules = [path for path in sorted(layer) if path.endswith(".py")]
    if not modules:
        return {}
    libraries = f"{root}/usr/lib/{_TRIPLES[architecture]}"
    # The loader's link is absolute in Debian's package, so that it would lead out of the folder.
    loader = next(Path(libraries).glob("ld-linux-*.so.*"), None)
    if loader is None:
        raise CompileError(f"no loader of shared libraries in {libraries}")
    done = subprocess.run(
        [
            *(str(loader), "--library-path", libraries, f"{root}/usr/bin/python{PYTHON}", "-sSB"),
            *("-m", "compileall", "-q", "-f", "--invalidation-mode", "unchecked-hash"),
            *("-s", str(root), "-p", "/", "-i", "-"),
        ],
        input="".join(f"{root}/{path}\n" for path in modules),
        env={"PYTHONHOME": f"{root}/usr", "PYTHONHASHSEED": "0", "PYTHONUTF8": "1"},
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise CompileError(f"compileall ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    tree: Tree = {}
    for path in modules:
        tree[cached_path(path)] = Entry((root / cached_path(path)).read_bytes())
    return tree


def cached_path(module: str) -> str:
    """Return where Python keeps the bytecode of a module."""
    path = PurePosixPath(module)
    return str(path.parent / "__pycache__" / f"{path.stem}.cpython-{PYTHON.replace('.', '')}.pyc")
