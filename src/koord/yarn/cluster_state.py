"""This module holds what the operator remembers of each YARN cluster, and the settings of its rounds."""

from __future__ import annotations

from collections import Counter

import msgspec

from koord.api.koordinator.yarn import YarnNodeId
from koord.wire.hadoop_rpc import RpcException
from koord.wire.hadoop_yarn import NodeReport
from koord.yarn.capacity import SeenNodeManagers, YarnProblem
from koord.yarn.hadoop_config import ResourceManagerAddress
from koord.yarn.models import BatchAmounts
from koord.yarn.resource_manager import CallFailure, NoActiveManager


class OperatorSettings(msgspec.Struct, frozen=True, kw_only=True):
    interval_s: float = 5.0  # between two rounds of a cluster
    longest_wait_s: float = 30.0  # between two rounds of one that fails
    over_commit_timeout_ms: int = 600_000  # how long containers beyond a smaller capacity live on; -1: for ever
    absence_grace_s: float = 60.0  # how long an unlisted NodeManager still holds what it held


UNREACHABLE, DENIED, REFUSED, BROKEN = "unreachable", "denied", "refused", "broken"


class RoundFailure(msgspec.Struct, frozen=True):
    """RoundFailure says what kept a round from its end; `kind` is one of the four words above."""

    kind: str
    text: str


def failure_of(what: str, failure: CallFailure) -> RoundFailure:
    kind = UNREACHABLE if isinstance(failure, NoActiveManager) else REFUSED
    if isinstance(failure, RpcException) and failure.is_access_denied:
        kind = DENIED
    return RoundFailure(kind, f"{what}: {failure}")


class YarnClusterState(msgspec.Struct):
    """YarnClusterState is what the last rounds of a cluster showed."""

    reports: dict[YarnNodeId, NodeReport] = {}
    seen: SeenNodeManagers = {}
    held: dict[str, BatchAmounts | None] = {}  # by node, of those that are seen
    problems: tuple[YarnProblem, ...] = ()
    error: str = "no round has ended yet"
    failure: str = ""  # the kind of the failure
    allowed_by: ResourceManagerAddress | None = None  # the ResourceManager that took the last change
    last_success: float = 0.0  # Unix time
    round_s: float = 0.0
    rounds: Counter[str] = msgspec.field(default_factory=Counter)
    updates: Counter[str] = msgspec.field(default_factory=Counter)
