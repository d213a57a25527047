"""kubectl as a person uses it, and its output with what must differ (times, addresses, uids) taken out."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

_NOISE = (
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z"), "<time>"),
    (re.compile(r"[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d [+-]\d{4}"), "<time>"),
    (re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"), "<uid>"),
    (re.compile(r'(resourceVersion"?: "?)\d+'), r"\1<revision>"),
    (re.compile(r"\b\d+[smh](\d+s)?\b(?= *$|  +)", re.MULTILINE), "<age>"),
    (re.compile(r"https://127\.0\.0\.1:\d+"), "<server>"),
    (re.compile(r"/[^ \"']*?/(edited|manifest|kubeconfig)[^ \"']*"), "<file>"),
)


def find() -> str:
    """The kubectl on this machine; a test that needs it says so when there is none."""
    found = shutil.which("kubectl")
    if found is None:
        pytest.skip("no kubectl on this machine")
    return found


@dataclass(frozen=True)
class Said:
    code: int
    out: str
    err: str

    def normalised(self) -> tuple[int, str, str]:
        return self.code, _plain(self.out), _plain(self.err)


def _plain(text: str) -> str:
    for pattern, with_ in _NOISE:
        text = pattern.sub(with_, text)
    return "\n".join(re.sub(r" {2,}", "  ", line.rstrip()) for line in text.splitlines())


def kubectl(kubeconfig: Path, *args: str, stdin: str = "", editor: str = "", timeout: float = 60) -> Said:
    env = {**os.environ, "KUBECONFIG": str(kubeconfig), "EDITOR": editor, "KUBE_EDITOR": editor}
    done = subprocess.run(
        [find(), *args], input=stdin, env=env, capture_output=True, text=True, timeout=timeout, check=False
    )
    return Said(done.returncode, done.stdout, done.stderr)
