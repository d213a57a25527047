"""An embedded API server in a thread of the test, which programs reach over HTTPS."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

from koord.embedded.cluster import ClusterSettings, EmbeddedCluster

START_S = 240


class ThreadedApiServer:
    """Where the server is and how to reach it."""

    def __init__(self, cluster: EmbeddedCluster, folder: Path) -> None:
        self.url = cluster.url
        self.token = cluster.token
        self.kubeconfig = folder / "kubeconfig"
        named = {"name": "guest"}
        self.kubeconfig.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "guest",
                    "contexts": [{**named, "context": {"cluster": "guest", "user": "guest"}}],
                    "clusters": [{**named, "cluster": {"server": self.url, "insecure-skip-tls-verify": True}}],
                    "users": [{**named, "user": {"token": self.token}}],
                }
            )
        )

    def ssl(self) -> ssl.SSLContext:
        """Trust any certificate: the server is in this process."""
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context


@contextlib.contextmanager
def running(folder: Path) -> Iterator[ThreadedApiServer]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="api-server")
    thread.start()
    cluster = EmbeddedCluster(ClusterSettings(port=0))
    try:
        asyncio.run_coroutine_threadsafe(cluster.start(), loop).result(START_S)
        yield ThreadedApiServer(cluster, folder)
    finally:
        asyncio.run_coroutine_threadsafe(cluster.stop(), loop).result(START_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
