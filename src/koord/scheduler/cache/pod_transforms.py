"""Transform pods as informers deliver them: everything in the scheduler sees what labels and annotations ask for.

Each transform is behind a feature gate, and nothing of it is written back. Reserve pods are made of Reservations, which
are not transformed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

import msgspec

from koord.api.annotations.pod_codecs import parse_replace_resources
from koord.api.kubernetes import pod as api_pod
from koord.api.kubernetes.container import ResourceRequirements
from koord.api.kubernetes.pod_resources import compute_qos_class
from koord.policy.pod_transform import apply_default_priority, replace_in_list, replace_resources
from koord.scheduler.cache.pod_model import Pod, SchedulerContainerStatus, normalised_spec

PodTransform = Callable[[Pod], Pod]


def set_default_priority(pod: Pod) -> Pod:
    """Give a pod without a priority the default of its priority class."""
    if pod.spec.priority:
        return pod
    # The slim spec has all that the class is computed from. The server's answer, status.qosClass, is the same.
    return apply_default_priority(pod, compute_qos_class(cast(api_pod.PodSpec, pod.spec)))


def replace_pod_resources(pod: Pod) -> Pod:
    """Replace resources as the annotation says, in the spec under current names and in what the kubelet reports.

    While a pod runs, the larger of spec and report counts: reported under its old name, a resource would count twice.
    """
    names = parse_replace_resources(pod.metadata.annotations)
    if not names:
        return pod
    replaced = replace_resources(msgspec.structs.replace(pod, spec=normalised_spec(pod)))
    status = msgspec.structs.replace(
        pod.status,
        container_statuses=tuple(_replace_in_status(one, names) for one in pod.status.container_statuses),
        init_container_statuses=tuple(_replace_in_status(one, names) for one in pod.status.init_container_statuses),
    )
    return msgspec.structs.replace(replaced, status=status)


def _replace_in_status(reported: SchedulerContainerStatus, names: Mapping[str, str]) -> SchedulerContainerStatus:
    allocated, running = reported.allocated_resources, reported.resources
    return msgspec.structs.replace(
        reported,
        allocated_resources=None if allocated is None else replace_in_list(allocated, names),
        resources=None
        if running is None
        else ResourceRequirements(
            requests=replace_in_list(running.requests, names),
            limits=replace_in_list(running.limits, names),
            claims=running.claims,
        ),
    )


def chain_transforms(transforms: tuple[PodTransform, ...]) -> PodTransform | None:
    """Return one transform that applies these in turn; None where there are none, so that pods are left alone."""
    if not transforms:
        return None

    def transform(pod: Pod) -> Pod:
        for each in transforms:
            pod = each(pod)
        return pod

    return transform
