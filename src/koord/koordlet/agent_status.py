"""The agent's answers about hooks and about every value that it gives to containers, for people and for `koord`.

`/hooks` answers a HooksStatus, `/containers` a ContainersStatus. Times are RFC 3339 texts, empty for never.

`/apis/v1/interference` answers an InterferenceStatus: incidents, the pods suspected of them, baselines and throttled
pods; `koord explain interference` prints it.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class _Served(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The base of all that is served: fields have Kubernetes' notation."""


class HookConnection(_Served, frozen=True, kw_only=True):
    """One way in: `nri`, `proxy`, or `simulated` on a simulated node.

    `state` says in words what it does or why it does not.
    """

    name: str
    connected: bool
    state: str
    since: str = ""
    details: Mapping[str, str] = {}


class HookStatus(_Served, frozen=True, kw_only=True):
    """One hook. `pods` and `containers` are those to which it applies now; durations are of calls by a runtime."""

    name: str
    gate: str
    enabled: bool
    why_off: str = ""
    pods: int = 0
    containers: int = 0
    last_applied: str = ""
    calls: int = 0
    failures: int = 0
    last_failure: str = ""
    p50_ms: float | None = None
    p99_ms: float | None = None


class HooksStatus(_Served, frozen=True, kw_only=True):
    safe_mode: bool = False
    connections: tuple[HookConnection, ...] = ()
    hooks: tuple[HookStatus, ...] = ()


class ContainerValue(_Served, frozen=True, kw_only=True):
    """One value of one cgroup file, under its name and in the notation of cgroup v1.

    `kernel` is what the file holds now, None when it cannot be read. `differs` compares as the kernel does: a value
    that it rounds is the same. `path` is the file itself, empty on a simulated machine.
    """

    knob: str
    wanted: str
    kernel: str | None
    decided_by: str
    why: str
    written_at: str = ""
    problem: str = ""
    differs: bool = False
    path: str = ""


class CgroupStatus(_Served, frozen=True, kw_only=True):
    """A container, sandbox or the pod itself (`level`) with all values that the agent decided for it.

    `others` is what hooks want for it besides cgroup values, by name.
    """

    level: str
    namespace: str
    pod: str
    uid: str
    group: str
    container: str = ""
    id: str = ""
    values: tuple[ContainerValue, ...] = ()
    others: Mapping[str, str] = {}
    problems: tuple[str, ...] = ()


class ContainersStatus(_Served, frozen=True, kw_only=True):
    containers: tuple[CgroupStatus, ...] = ()


class Suspect(msgspec.Struct, frozen=True, kw_only=True, gc=False, rename="camel"):
    """A batch pod that ran while a container was disturbed. `score` is the correlation of its CPU use with the
    container's metric, from -1 to 1.
    """

    namespace: str
    pod: str
    uid: str
    score: float
    cores: float  # used, on average of the samples that were correlated

    @property
    def full_name(self) -> str:
        return f"{self.namespace}/{self.pod}"


class InterferenceRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False, rename="camel"):
    """One incident: a container that ran worse than its own baseline, and what was done about it."""

    number: int
    namespace: str
    pod: str
    uid: str
    container: str
    metric: str
    value: float  # the latest sample; when the incident is over, the one that ended it
    mean: float
    deviation: float
    threshold: float  # above which a sample is an outlier
    samples: int  # that the baseline is made of
    since: str  # RFC 3339
    ended: str = ""
    suspects: tuple[Suspect, ...] = ()  # the highest score first
    culprit: str = ""  # NAMESPACE/POD, empty where no score reaches the threshold
    action: str  # the setting when it was last decided
    outcome: str = ""  # what was done, or why nothing was

    @property
    def full_name(self) -> str:
        return f"{self.namespace}/{self.pod}"

    @property
    def why(self) -> str:
        """Return the measured value, its baseline and the culprit in one sentence."""
        normal = f"{self.mean:.3g} ± {self.deviation:.2g}"
        if self.ended:
            return f"{self.metric} of container {self.container} is {self.value:.3g} again, normal is {normal}"
        score = (self.value - self.mean) / self.deviation
        text = (
            f"{self.metric} of container {self.container} is {self.value:.3g}, {score:.1f} deviations above its normal "
            f"{normal} ({self.samples} samples)"
        )
        nearest = self.suspects[0] if self.suspects and self.suspects[0].score > 0 else None
        if not self.culprit and nearest is not None:
            return (
                f"{text}; no batch pod's CPU use follows it closely enough: correlation {nearest.score:.2f} of"
                f" {nearest.namespace}/{nearest.pod} is below correlationThreshold"
            )
        if not self.culprit:
            return f"{text}; no batch pod's CPU use follows it"
        return f"{text}; the CPU use of {self.culprit} follows it (correlation {self.suspects[0].score:.2f})"


class ContainerBaseline(msgspec.Struct, frozen=True, kw_only=True, gc=False, rename="camel"):
    """The normal range of one metric of one container. `learning`: there are too few samples to judge by."""

    namespace: str
    pod: str
    container: str
    metric: str
    mean: float
    deviation: float
    samples: int
    latest: float
    outliers: int  # of the last five samples
    learning: bool = False


class ThrottledPod(msgspec.Struct, frozen=True, kw_only=True, gc=False, rename="camel"):
    namespace: str
    pod: str
    uid: str
    milli: int  # of CPU that it may use
    until: str
    victim: str


class InterferenceStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """All that a node's agent knows. `why` says why nothing is detected, or what limits it."""

    enabled: bool = False
    why: str = ""
    action: str = ""
    metrics: tuple[str, ...] = ()  # by which containers are judged now
    since: str = ""  # when this process began to learn: baselines do not outlive it
    watched: int = 0  # containers with a baseline
    learning: int = 0  # containers without one yet
    throttled: tuple[ThrottledPod, ...] = ()
    incidents: tuple[InterferenceRecord, ...] = ()  # open, the newest first
    ended: tuple[InterferenceRecord, ...] = ()  # the newest first
    baselines: tuple[ContainerBaseline, ...] = ()
