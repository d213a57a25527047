"""Play stories against two kubeconfigs: python -m tests.real.conformance REAL OURS [story or story/step ...]"""

from __future__ import annotations

import asyncio
import base64
import ssl
import sys
from pathlib import Path

import yaml

from tests.real.conformance.player import Server, differences
from tests.real.conformance.stories import ALL


def server(kubeconfig: str) -> Server:
    config = yaml.safe_load(Path(kubeconfig).read_text())
    cluster = config["clusters"][0]["cluster"]
    context = ssl.create_default_context()
    if "certificate-authority" in cluster:
        context.load_verify_locations(cluster["certificate-authority"])
    else:
        context.load_verify_locations(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
    context.check_hostname = False
    return Server(cluster["server"], config["users"][0]["user"]["token"], context)


async def main(real: str, ours: str, wanted: list[str]) -> int:
    steps = bad = 0
    for story in ALL:
        if wanted and story.id not in {w.split("/")[0] for w in wanted}:
            continue
        found = await differences(story, server(real), server(ours))
        steps += len(story.steps)
        bad += len(found)
        for id, lines in found.items():
            if wanted and story.id not in wanted and f"{story.id}/{id}" not in wanted:
                continue
            sys.stdout.write(f"{story.id}/{id}\n" + "".join(f"    {line}\n" for line in lines))
    sys.stdout.write(f"{steps} requests, {bad} differ\n")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3:])))
