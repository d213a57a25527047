"""A pod and its quota: whether it may be preempted is fixed, and a quota with children takes no pods itself."""

from __future__ import annotations

from collections.abc import Mapping

from koord.api.pod import Pod
from koord.api.protocol import L_QUOTA_PREEMPTIBLE
from koord.manager.webhooks.world import QuotaView


def complaint(pod: Pod, old: Pod | None, namespace: str, quotas: QuotaView, gates: Mapping[str, bool]) -> str | None:
    """Return the error in the pod's quota: its preemptible label is fixed, and a parent quota takes no pods."""
    labels = pod.metadata.labels
    if old is not None and labels.get(L_QUOTA_PREEMPTIBLE, "") != old.metadata.labels.get(L_QUOTA_PREEMPTIBLE, ""):
        return "Preemptible label is forbidden modify now."
    if gates["SupportParentQuotaSubmitPod"]:
        return None
    name = quotas.quota_of(labels, namespace, default=not gates["DisableDefaultQuota"])
    if quotas.is_parent(name):
        return f"pod can not be linked to a parentQuotaGroup,quota:{name}, pod:{pod.metadata.name}"
    return None
