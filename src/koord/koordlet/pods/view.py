"""From a pod to its view: where its groups are, by the layout of this node's cgroups."""

from __future__ import annotations

from koord.api.pod import Pod
from koord.api.pod_qos import pod_qos
from koord.host.cgroup.layout import Layout
from koord.koordlet.pod import PodView, pod_view

_MIRROR = "kubernetes.io/config.mirror"
_HASH = "kubernetes.io/config.hash"


def view_of(pod: Pod, layout: Layout) -> PodView:
    """Build the PodMeta of a pod with the cgroup paths of this node's layout."""
    group = layout.pod_dir(pod_qos(pod), group_uid(pod))
    ids = [one.container_id for one in (*pod.status.container_statuses, *pod.status.init_container_statuses)]
    found = {identity: layout.container_dir(group, identity) for identity in ids if identity}
    return pod_view(pod, group, {identity: folder for identity, folder in found.items() if folder})


def group_uid(pod: Pod) -> str:
    """Return the uid in the name of the pod's cgroup. The API server's copy of a static pod has another uid."""
    annotations = pod.metadata.annotations
    return annotations.get(_HASH, pod.metadata.uid) if _MIRROR in annotations else pod.metadata.uid
