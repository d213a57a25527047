"""This program runs a command that a person ends with Ctrl-C.

It sends SIGINT once the command printed a word, and expects a clean end.
"""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys

INTERRUPTED = (0, -signal.SIGINT, 128 + signal.SIGINT)
TIMEOUT_S = 30


def main(word: str, line: str) -> int:
    words = shlex.split(line, comments=True)
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, bufsize=1)
    assert process.stdout is not None
    for printed in process.stdout:
        sys.stdout.write(printed)
        sys.stdout.flush()
        if word in printed:
            process.send_signal(signal.SIGINT)
            sys.stdout.write(process.communicate(timeout=TIMEOUT_S)[0])
            return 0 if process.returncode in INTERRUPTED else process.returncode or 1
    sys.stdout.write(f"{line}: it ended with {process.wait()} and never printed {word}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
