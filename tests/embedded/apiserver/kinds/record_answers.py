"""This program records a real server's answers.

Run python -m tests.embedded.apiserver.kinds.record_answers KUBECONFIG [object ...]
"""

from __future__ import annotations

import asyncio
import gzip
import json
import secrets
import sys
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from tests.embedded.apiserver.kinds.corpus import objects
from tests.embedded.apiserver.kinds.corpus_runner import PANIC, Answers, collect_answers
from tests.real.conformance.__main__ import server

RECORD = Path(__file__).parent / "answers.json.gz"


def load() -> dict[str, Answers]:
    found: dict[str, Answers] = json.loads(gzip.decompress(RECORD.read_bytes())) if RECORD.exists() else {}
    return found


async def _record(session: aiohttp.ClientSession, url: str, wanted: list[str]) -> dict[str, Answers]:
    async def ask(method: str, path: str, query: dict[str, str], body: Any) -> tuple[int, Any]:
        try:
            async with session.request(method, url + path, params=query, json=body) as answer:
                return answer.status, msgspec.json.decode(await answer.read())
        except aiohttp.ServerDisconnectedError:  # the real server's own validation panics over a few of these
            return 500, {"message": PANIC}

    ns = f"kinds-{secrets.token_hex(4)}"
    await ask("POST", "/api/v1/namespaces", {}, {"metadata": {"name": ns}})
    try:
        found = load()
        for name, obj in objects().items():
            if not wanted or name in wanted:
                found[name] = await collect_answers(ask, name, obj, ns)
                sys.stdout.write(f"{name}: {len(found[name]['create'])}\n")
        return {name: found[name] for name in objects() if name in found}
    finally:
        await ask("DELETE", f"/api/v1/namespaces/{ns}", {}, {})


async def main(kubeconfig: str, wanted: list[str]) -> None:
    real = server(kubeconfig)
    async with real.session() as session:
        found = await _record(session, real.url, wanted)
    text = json.dumps(found, separators=(",", ":"), sort_keys=True, ensure_ascii=False)
    RECORD.write_bytes(gzip.compress(text.encode(), 9, mtime=0))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2:]))
