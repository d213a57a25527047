"""The client of this node's NodeManager: it lists the live containers, and finds out where the NodeManager listens."""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from koord.api.koordinator.yarn import NODE_MANAGER_WEB_PORT, is_node_manager
from koord.telemetry.clock import Clock
from koord.telemetry.plain_http import HttpFailure, request
from koord.wire.yarn_copilot import MalformedAnswer, NodeManagerContainer, parse_node_manager_containers

_LOG = logging.getLogger(__name__)

LIST_PATH = "/ws/v1/node/containers"
LIST_AGE_S = 1.0  # several callers in a moment make the NodeManager list its containers once
SEARCH_INTERVAL_S = 10.0  # between two questions to the kubelet
Address = tuple[str, int]


class NodeManagerUnavailable(msgspec.Struct, frozen=True):
    """NodeManagerUnavailable says why the containers of the node are not known."""

    why: str

    def __str__(self) -> str:
        return self.why


class NodeManagerClient:
    """The client of one NodeManager.

    With a `kubelet` address, the pods of the node are searched for a NodeManager while the one at `address` does not
    answer: a NodeManager in a pod that is not in the host's network has the pod's address, which changes.
    """

    def __init__(
        self,
        address: Address,
        clock: Clock,
        *,
        kubelet: Address | None = None,
        timeout_s: float = 5.0,
        on_list: Callable[[bool], None] = lambda works: None,
    ) -> None:
        """`on_list` is called after each question to the NodeManager with whether it answered."""
        self.address = address
        self._clock = clock
        self._kubelet = kubelet
        self._timeout_s = timeout_s
        self._on_list = on_list
        self._listed: list[NodeManagerContainer] = []
        self._listed_s: float | None = None
        self._searched_s: float | None = None
        self.problem = "not asked yet"

    async def containers(self, *, fresh: bool = False) -> list[NodeManagerContainer] | NodeManagerUnavailable:
        """Return the live containers, at most a second old, or as they are now with `fresh`."""
        now_s = self._clock.monotonic()
        if not fresh and self._listed_s is not None and now_s - self._listed_s < LIST_AGE_S:
            return self._listed
        found = await self._ask()
        if isinstance(found, NodeManagerUnavailable) and await self._search():
            found = await self._ask()
        works = not isinstance(found, NodeManagerUnavailable)
        self._on_list(works)
        if isinstance(found, NodeManagerUnavailable):
            self.problem, self._listed_s = found.why, None
        else:
            self.problem, self._listed, self._listed_s = "", found, self._clock.monotonic()
        return found

    def forget(self) -> None:
        """Forget what was listed, so that the next caller makes the NodeManager list again."""
        self._listed_s = None

    @property
    def live_count(self) -> int:
        """Return how many containers there were when the NodeManager last answered; 0 while it does not."""
        return 0 if self._listed_s is None else len(self._listed)

    async def _ask(self) -> list[NodeManagerContainer] | NodeManagerUnavailable:
        answer = await request(self.address, "GET", LIST_PATH, timeout_s=self._timeout_s)
        if isinstance(answer, HttpFailure):
            return NodeManagerUnavailable(f"the NodeManager does not answer: {answer}")
        where = f"{self.address[0]}:{self.address[1]}{LIST_PATH}"
        if answer.status != 200:
            return NodeManagerUnavailable(f"the NodeManager at {where} answered {answer.status}")
        listed = parse_node_manager_containers(answer.body)
        if isinstance(listed, MalformedAnswer):
            return NodeManagerUnavailable(f"the NodeManager at {where} answered {listed}")
        return listed

    async def _search(self) -> bool:
        """Ask the kubelet for the NodeManager's pod. Return whether another address is known now."""
        now_s = self._clock.monotonic()
        if self._kubelet is None or (self._searched_s is not None and now_s - self._searched_s < SEARCH_INTERVAL_S):
            return False
        self._searched_s = now_s
        answer = await request(self._kubelet, "GET", "/pods", timeout_s=self._timeout_s)
        if isinstance(answer, HttpFailure) or answer.status != 200:
            why = answer if isinstance(answer, HttpFailure) else f"status {answer.status}"
            _LOG.debug("the kubelet's read-only port tells no pods: %s", why)
            return False
        found = node_manager_address(answer.body)
        if found is None or found == self.address:
            return False
        _LOG.info("the NodeManager's pod has the address %s", found[0])
        self.address = found
        return True


class _Metadata(msgspec.Struct, frozen=True):
    labels: dict[str, str] | None = None


class _PodSpec(msgspec.Struct, frozen=True, rename="camel"):
    host_network: bool = False


class _PodStatus(msgspec.Struct, frozen=True):
    phase: str = ""
    pod_ip: str = msgspec.field(name="podIP", default="")


class _Pod(msgspec.Struct, frozen=True):
    metadata: _Metadata = _Metadata()
    spec: _PodSpec = _PodSpec()
    status: _PodStatus = _PodStatus()


class _PodList(msgspec.Struct, frozen=True):
    items: list[_Pod] | None = None


def node_manager_address(pods: bytes) -> Address | None:
    """Return the address of the NodeManager among the kubelet's pods; None when there is none that runs."""
    try:
        listed = msgspec.json.decode(pods, type=_PodList)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    for pod in listed.items or ():
        if is_node_manager(pod.metadata.labels or {}) and pod.status.phase == "Running":
            if pod.spec.host_network:
                return "localhost", NODE_MANAGER_WEB_PORT
            if pod.status.pod_ip:
                return pod.status.pod_ip, NODE_MANAGER_WEB_PORT
    return None
