"""This module starts the programs whose libraries come with extras of the package, and says which extra is missing."""

from __future__ import annotations

import importlib
import sys

# Top-level modules of the libraries that only extras bring.
LIBRARIES_OF_EXTRAS = frozenset({"cronsim", "cryptography", "grpc", "numpy", "rich"})


def missing_library_message(missing: ModuleNotFoundError, extra: str) -> str:
    """Return what to install, or an empty text for a module that no extra brings: that is no fault of the install."""
    library = (missing.name or "").partition(".")[0]
    if library not in LIBRARIES_OF_EXTRAS:
        return ""
    return f"the library {library} is not installed; koord's extra `{extra}` has it: pip install 'koord[{extra}]'"


def koord_scheduler() -> None:
    """Run the console script."""
    _run_program("koord-scheduler", "koord.cli.daemons.koord_scheduler", "main", "scheduler")


def koord_manager() -> None:
    """Run the console script."""
    _run_program("koord-manager", "koord.cli.daemons.koord_manager", "run", "manager")


def _run_program(name: str, module: str, function: str, extra: str) -> None:
    try:
        program = importlib.import_module(module)
    except ModuleNotFoundError as missing:
        message = missing_library_message(missing, extra)
        if not message:
            raise
        print(f"{name}: {message}", file=sys.stderr)
        sys.exit(1)
    getattr(program, function)()
