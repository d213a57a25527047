"""Check whether a pod may start under its quota; a refusal carries the numbers and Koordinator's text."""

from __future__ import annotations

from typing import Literal

import msgspec

from koord.policy.quota.amount import Counts, names, text

Kind = Literal["quota", "parent", "non-preemptible", "unknown", "adrift"]


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """A refused pod. `limit` and `used` are those of `quota`, which for kind parent is an ancestor of the pod's
    own quota.

    A non-preemptible pod can never be evicted, so only guaranteed amounts can carry it: its limit is min.
    """

    kind: Kind
    quota: str
    limit: Counts = {}
    used: Counts = {}
    requested: Counts = {}
    exceeded: tuple[str, ...] = ()
    path: tuple[str, ...] = ()  # from the exceeded ancestor down to the pod's quota
    limited_by: Literal["runtime", "max"] = "runtime"
    why: str = ""

    @property
    def text(self) -> str:
        match self.kind:
            case "unknown":
                return f"Could not find the specified ElasticQuota, quotaName: {self.quota}"
            case "adrift":
                return f"ElasticQuota {self.quota} has no place in its tree: {self.why}"
            case "non-preemptible":
                start = f"Insufficient non-preemptible quotas, quotaName: {self.quota}, min: {text(self.limit)}"
                used = f"nonPreemptibleUsed: {text(self.used)}"
            case "parent":
                start = f"Insufficient quotas, quotaNameTopo: {names(self.path)}, {self.limited_by}: {text(self.limit)}"
                used = f"used: {text(self.used)}"
            case "quota":
                start = f"Insufficient quotas, quotaName: {self.quota}, runtime: {text(self.limit)}"
                used = f"used: {text(self.used)}"
        wanted = f"pod's request: {text(self.requested)}, exceedDimensions: {names(self.exceeded)}"
        return f"{start}, {used}, {wanted}"
