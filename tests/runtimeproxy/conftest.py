"""Fixtures of the proxy's tests."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.runtimeproxy.proxy_site import Site


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path, as the path of a socket is limited."""
    made = Path(tempfile.mkdtemp(prefix="rp-"))
    yield made
    shutil.rmtree(made)


@pytest.fixture
async def site(folder: Path) -> AsyncIterator[Site]:
    """A running proxy, runtime and hook server; the hook server is not registered yet."""
    site = Site(folder)
    await site.runtime.start(site.settings.runtime_endpoint)
    await site.hooks.start(site.hook_socket)
    await site.start()
    yield site
    await site.channel.close()
    await site.stop()
    await site.hooks.stop()
    await site.runtime.stop()
