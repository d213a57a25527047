"""Play every webhook case on a real server and keep what came of it in webhook_answers.json.gz.

Run from the repository's root: python -m tests.embedded.apiserver.admission.freeze_webhook_answers KUBECONFIG
"""

from __future__ import annotations

import asyncio
import gzip
import secrets
import ssl
import sys
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import yaml

from tests.embedded.apiserver.admission.webhook_cases import CASES, play
from tests.embedded.apiserver.admission.webhook_server import webhook_server

ANSWERS = Path(__file__).with_name("webhook_answers.json.gz")
CACHE_S = 0.4  # how long the real server takes to follow its own configurations, generously


async def main(config: Any) -> None:
    url, token = config["clusters"][0]["cluster"]["server"], config["users"][0]["user"]["token"]
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    headers = {"Authorization": f"Bearer {token}", "User-Agent": "webhooks/1"}
    found = {}
    async with (
        aiohttp.ClientSession(headers=headers, connector=aiohttp.TCPConnector(ssl=context)) as session,
        webhook_server() as hooks,
    ):

        async def send(method: str, path: str, body: Any, form: str) -> tuple[int, Any, list[str]]:
            data = None if body is None else msgspec.json.encode(body)
            kind = {"Content-Type": form or "application/json"} if data is not None else {}
            async with session.request(method, url + path, data=data, headers=kind) as answer:
                return answer.status, await answer.json(content_type=None), list(answer.headers.getall("Warning", ()))

        for case in CASES:
            ns = f"hooks-{secrets.token_hex(4)}"
            await send("POST", "/api/v1/namespaces", {"metadata": {"name": ns}}, "")
            found[case] = await play(case, send, hooks, ns, lambda: asyncio.sleep(CACHE_S))
            await send("DELETE", f"/api/v1/namespaces/{ns}", None, "")
    ANSWERS.write_bytes(gzip.compress(msgspec.json.encode(found), mtime=0))
    sys.stdout.write(f"{len(found)} cases\n")


if __name__ == "__main__":
    asyncio.run(main(yaml.safe_load(Path(sys.argv[1]).read_text())))
