"""This program has Go encode every kind with every field (needs Go).

Run python -m tests.embedded.apiserver.protobuf.record_types.
"""

from __future__ import annotations

import gzip
import json
import subprocess
from pathlib import Path

from tests.embedded.apiserver.protobuf import filled_objects

HERE = Path(__file__).parent
RECORD = HERE / "types.json.gz"
MODULE = HERE.parents[3] / "assets/kubernetes"


def main() -> None:
    objects = {
        f"{name} {'zero' if zero else 'full'}": obj
        for zero in (False, True)
        for name, obj in filled_objects.objects(zero=zero)
    }
    done = subprocess.run(
        ["go", "run", "-mod=readonly", str(HERE / "encode.go")],
        cwd=MODULE,
        input=json.dumps(list(objects.values())),
        capture_output=True,
        check=True,
        text=True,
    )
    found = dict(zip(objects, json.loads(done.stdout), strict=True))
    text = json.dumps(found, separators=(",", ":"), ensure_ascii=True).encode()
    RECORD.write_bytes(gzip.compress(text, 9, mtime=0))


if __name__ == "__main__":
    main()
