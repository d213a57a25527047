"""The pods that a Recommendation is about. Pure; one lookup per pod, however many Recommendations there are."""

from __future__ import annotations

import re

import msgspec

from koord.api.koordinator.profiles import TARGET_POD_SELECTOR, TARGET_WORKLOAD, Recommendation
from koord.api.kubernetes.meta import OwnerReference, label_selector_as_selector
from koord.api.kubernetes.pod import Pod
from koord.kube.informer.cache import ObjectKey
from koord.values.selector import Selector, SelectorError

L_TEMPLATE_HASH = "pod-template-hash"
_SCHEDULED_JOB = re.compile(r"(.+)-\d+")


class WorkloadTarget(msgspec.Struct, frozen=True):
    """A workload by group, kind and name: API versions differ between owner references and users, groups do not."""

    namespace: str
    group: str
    kind: str
    name: str


class SelectorTarget(msgspec.Struct, frozen=True):
    namespace: str
    selector: Selector


class UnsupportedTarget(msgspec.Struct, frozen=True):
    why: str


RecommendationTarget = WorkloadTarget | SelectorTarget | UnsupportedTarget


def parse_target(recommendation: Recommendation) -> RecommendationTarget:
    namespace, target = recommendation.metadata.namespace, recommendation.spec.target
    if target.type == TARGET_WORKLOAD:
        workload = target.workload
        if workload is None or not workload.kind or not workload.name:
            return UnsupportedTarget("spec.target.workload needs a kind and a name")
        return WorkloadTarget(namespace, _api_group(workload.api_version), workload.kind, workload.name)
    if target.type == TARGET_POD_SELECTOR:
        given = target.pod_selector
        if given is None:
            return UnsupportedTarget("spec.target.podSelector is missing")
        try:
            return SelectorTarget(namespace, label_selector_as_selector(given))
        except SelectorError as error:
            return UnsupportedTarget(f"spec.target.podSelector: {error}")
    return UnsupportedTarget(f"spec.target.type is {target.type!r}")


def workloads_of_pod(pod: Pod) -> list[WorkloadTarget]:
    """Return the pod's owner, and that owner's owner where its name tells: no other object needs to be read."""
    namespace = pod.metadata.namespace
    found: list[WorkloadTarget] = []
    for owner in pod.metadata.owner_references:
        if not owner.controller:
            continue
        group = _api_group(owner.api_version)
        found.append(WorkloadTarget(namespace, group, owner.kind, owner.name))
        above = _owner_of_owner(owner, pod.metadata.labels.get(L_TEMPLATE_HASH, ""))
        if above is not None:
            found.append(WorkloadTarget(namespace, group, *above))
    return found


def _owner_of_owner(owner: OwnerReference, template_hash: str) -> tuple[str, str] | None:
    if owner.kind == "ReplicaSet" and template_hash and owner.name.endswith(f"-{template_hash}"):
        return "Deployment", owner.name.removesuffix(f"-{template_hash}")
    if owner.kind == "Job" and (scheduled := _SCHEDULED_JOB.fullmatch(owner.name)):
        return "CronJob", scheduled[1]
    return None


def _api_group(api_version: str) -> str:
    return api_version.rpartition("/")[0]


class TargetIndex:
    def __init__(self) -> None:
        self._targets: dict[ObjectKey, RecommendationTarget] = {}
        self._by_workload: dict[WorkloadTarget, set[ObjectKey]] = {}
        self._by_selector: dict[str, dict[ObjectKey, Selector]] = {}

    def __len__(self) -> int:
        return len(self._targets)

    def put(self, key: ObjectKey, target: RecommendationTarget) -> None:
        self.drop(key)
        self._targets[key] = target
        match target:
            case WorkloadTarget():
                self._by_workload.setdefault(target, set()).add(key)
            case SelectorTarget(namespace, selector):
                self._by_selector.setdefault(namespace, {})[key] = selector

    def drop(self, key: ObjectKey) -> None:
        target = self._targets.pop(key, None)
        match target:
            case WorkloadTarget():
                self._by_workload[target].discard(key)
                if not self._by_workload[target]:
                    del self._by_workload[target]
            case SelectorTarget(namespace, _):
                self._by_selector[namespace].pop(key)
                if not self._by_selector[namespace]:
                    del self._by_selector[namespace]

    def recommendations_of_pod(self, pod: Pod) -> set[ObjectKey]:
        found: set[ObjectKey] = set()
        for workload in workloads_of_pod(pod):
            found |= self._by_workload.get(workload, set())
            # A target without an API version means the kind of any group.
            found |= self._by_workload.get(msgspec.structs.replace(workload, group=""), set())
        for key, selector in self._by_selector.get(pod.metadata.namespace, {}).items():
            if selector.matches(pod.metadata.labels):
                found.add(key)
        return found
