"""A headless Chromium of this machine, driven over the DevTools protocol."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

NAMES = ("chromium", "chromium-browser", "google-chrome")
MISSING = "no Chromium on this machine: apt-get install chromium brings it"
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars"),
    *("--disable-dev-shm-usage", "--remote-debugging-port=0"),
)
WAIT_S = 60  # for what a page is expected to show; a machine may be busy
_POLL = """
new Promise((done) => {{
  const look = () => {{
    let found = false;
    try {{ found = {condition}; }} catch (error) {{ found = false; }}
    if (found) done(true); else setTimeout(look, 50);
  }};
  look();
}})
"""


def find_chromium() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name)) is not None), None)


class ChromiumPage:
    """ChromiumPage is one tab. Exceptions and messages of the page's scripts are kept in `problems`."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._calls = 0
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self.problems: list[str] = []
        self.requested: list[str] = []  # addresses

    async def read(self) -> None:
        """Read answers and events, until the tab is closed."""
        async for message in self._socket:
            told = json.loads(message.data)
            if "id" in told:
                self._waiting.pop(told["id"]).set_result(told)
            elif told["method"] == "Runtime.exceptionThrown":
                details = told["params"]["exceptionDetails"]
                self.problems.append(str(details.get("exception", {}).get("description", details["text"])))
            elif told["method"] == "Log.entryAdded" and told["params"]["entry"]["level"] == "error":
                self.problems.append(told["params"]["entry"]["text"])
            elif told["method"] == "Network.requestWillBeSent":
                self.requested.append(told["params"]["request"]["url"])

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._calls += 1
        answered = self._waiting[self._calls] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": self._calls, "method": method, "params": parameters})
        async with asyncio.timeout(WAIT_S):
            told = await answered
        if "error" in told:
            raise RuntimeError(f"{method}: {told['error']}")
        result: dict[str, Any] = told["result"]
        return result

    async def open(self, url: str) -> None:
        await self.call("Page.navigate", url=url)

    async def evaluate(self, expression: str) -> Any:
        told = await self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in told:
            raise RuntimeError(f"{expression}: {told['exceptionDetails']}")
        return told["result"].get("value")

    async def wait_for(self, condition: str) -> None:
        """Wait until a condition of the page holds. A navigation in between begins the wait again."""
        try:
            async with asyncio.timeout(WAIT_S):
                while True:
                    try:
                        await self.evaluate(_POLL.format(condition=condition))
                        return
                    except RuntimeError as gone:
                        if "navigated" not in str(gone) and "context" not in str(gone):
                            raise
        except TimeoutError:
            shown = await self.evaluate("document.body.innerText")
            raise AssertionError(f"{condition} never held; the page shows: {shown}; {self.problems}") from None

    async def wait_for_text(self, text: str) -> None:
        await self.wait_for(f"document.body.innerText.includes({json.dumps(text)})")

    async def press(self, key: str, code: int = 0) -> None:
        typed = {"text": "\r"} if key == "Enter" else {}
        parameters = {"key": key, "code": key, "windowsVirtualKeyCode": code or _KEY_CODES[key], **typed}
        await self.call("Input.dispatchKeyEvent", type="keyDown", **parameters)
        await self.call("Input.dispatchKeyEvent", type="keyUp", **parameters)

    async def resize(self, width: int, height: int) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        await self.call("Emulation.setDeviceMetricsOverride", **size)

    async def prefer(self, scheme: str) -> None:
        await self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])


_KEY_CODES = {"Tab": 9, "Enter": 13, "Escape": 27, "ArrowRight": 39, "ArrowLeft": 37, "ArrowDown": 40, "End": 35}


@asynccontextmanager
async def chromium_page(binary: str) -> AsyncIterator[ChromiumPage]:
    """Run a new Chromium with one tab; it ends with the context."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = await asyncio.create_subprocess_exec(
            binary, *FLAGS, f"--user-data-dir={profile}", "about:blank", stderr=asyncio.subprocess.PIPE
        )
        assert process.stderr is not None
        try:
            address = ""
            said: list[str] = []
            while not address:
                line = (await process.stderr.readline()).decode(errors="replace")
                if not line:
                    raise RuntimeError(f"Chromium ended: {''.join(said)}")
                said.append(line)
                found = re.search(r"ws://([^/]+)/", line)
                address = found[1] if found else ""
            drain = asyncio.create_task(process.stderr.read())
            async with aiohttp.ClientSession() as session:
                async with session.put(f"http://{address}/json/new?about:blank") as answer:
                    tab = await answer.json(content_type=None)
                async with session.ws_connect(tab["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                    page = ChromiumPage(socket)
                    reading = asyncio.create_task(page.read())
                    for domain in ("Page", "Runtime", "Log", "Network"):
                        await page.call(f"{domain}.enable")
                    await page.resize(1280, 900)
                    yield page
                    reading.cancel()
            drain.cancel()
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()
