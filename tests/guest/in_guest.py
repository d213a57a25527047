"""Run test files in a fresh guest, with this machine's Python and this repo."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from tools import assets, guest

REPO = Path(__file__).resolve().parents[2]
MARK = "KOORD_GUEST"  # a variable of the environment inside of a guest
PATIENCE_S = 240  # for one condition inside: every instruction is translated
_OUTCOME = re.compile(r"^(PASSED|SKIPPED|FAILED|ERROR)\b.*$", re.MULTILINE)


class GuestRun(msgspec.Struct, frozen=True):
    """What pytest said in the guest. `code` is None when the guest did not end in time."""

    code: int | None
    text: str

    @property
    def passed(self) -> list[str]:
        return self._outcomes("PASSED")

    @property
    def skipped(self) -> list[str]:
        return self._outcomes("SKIPPED")

    @property
    def end(self) -> str:
        return self.text[-12_000:]

    def _outcomes(self, word: str) -> list[str]:
        return [found[0] for found in _OUTCOME.finditer(self.text) if found[1] == word]


def run_tests(
    files: Sequence[str], kernel: Path, *, seconds: float, memory_mib: int = 1536, systemd: bool = False
) -> GuestRun:
    """Run the tests; `memory_mib` is the guest's, and with `systemd` that is its first process."""
    words = [sys.executable, "-m", "pytest", *files, "-n0", "-rA", "--color=no", "-p", "no:cacheprovider"]
    words += ["--basetemp=/tmp/pytest", "--show-capture=no", "--tb=short", "-v"]
    settings = [f"PYTHONPATH={REPO}/src", "PYTHONDONTWRITEBYTECODE=1", "HOME=/root", f"{MARK}=1"]
    settings += [f"KOORD_PATIENCE_S={PATIENCE_S}", f"KOORD_ASSETS={assets.cache_root()}"]
    settings += [f"PATH={Path(sys.executable).parent}:/usr/sbin:/usr/bin:/sbin:/bin"]
    command = f"cd {shlex.quote(str(REPO))} && env {shlex.join(settings)} {shlex.join(words)}"
    shared = {Path("/usr"), Path(sys.base_prefix).resolve(), Path(sys.prefix).resolve(), REPO}
    shared |= {one for one in [assets.cache_root().resolve()] if one.is_dir()}
    outermost = [one for one in shared if not any(other in one.parents for other in shared)]
    found = guest.run(
        command, sorted(outermost), kernel=kernel, seconds=seconds, memory_mib=memory_mib, systemd=systemd
    )
    return GuestRun(*found)
