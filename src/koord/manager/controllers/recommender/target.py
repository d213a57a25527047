"""Which pods a Recommendation is about. Pure; one lookup per pod, however many Recommendations there are."""

from __future__ import annotations

import re

import msgspec

from koord.api.analysis import TARGET_POD_SELECTOR, TARGET_WORKLOAD, Recommendation
from koord.api.meta import OwnerReference
from koord.api.pod import Pod
from koord.kube.cache import Key
from koord.values.selector import Selector, SelectorError

L_TEMPLATE_HASH = "pod-template-hash"
_SCHEDULED_JOB = re.compile(r"(.+)-\d+")


class Workload(msgspec.Struct, frozen=True):
    """A workload by group, kind and name: API versions differ between owner references and users, groups do not."""

    namespace: str
    group: str
    kind: str
    name: str


class Chosen(msgspec.Struct, frozen=True):
    """The pods of a namespace by label selector."""

    namespace: str
    selector: Selector


class Unsupported(msgspec.Struct, frozen=True):
    why: str


Target = Workload | Chosen | Unsupported


def target_of(recommendation: Recommendation) -> Target:
    namespace, target = recommendation.metadata.namespace, recommendation.spec.target
    if target.type == TARGET_WORKLOAD:
        workload = target.workload
        if workload is None or not workload.kind or not workload.name:
            return Unsupported("spec.target.workload needs a kind and a name")
        return Workload(namespace, _group(workload.api_version), workload.kind, workload.name)
    if target.type == TARGET_POD_SELECTOR:
        given = target.pod_selector
        if given is None:
            return Unsupported("spec.target.podSelector is missing")
        try:
            expressions = [(one.key, one.operator, one.values) for one in given.match_expressions]
            return Chosen(namespace, Selector.of(given.match_labels, expressions))
        except SelectorError as error:
            return Unsupported(f"spec.target.podSelector: {error}")
    return Unsupported(f"spec.target.type is {target.type!r}")


def workloads_of(pod: Pod) -> list[Workload]:
    """Return the pod's owner, and that owner's owner where its name tells: no other object needs to be read."""
    namespace = pod.metadata.namespace
    found: list[Workload] = []
    for owner in pod.metadata.owner_references:
        if not owner.controller:
            continue
        group = _group(owner.api_version)
        found.append(Workload(namespace, group, owner.kind, owner.name))
        above = _above(owner, pod.metadata.labels.get(L_TEMPLATE_HASH, ""))
        if above is not None:
            found.append(Workload(namespace, group, *above))
    return found


def _above(owner: OwnerReference, template_hash: str) -> tuple[str, str] | None:
    if owner.kind == "ReplicaSet" and template_hash and owner.name.endswith(f"-{template_hash}"):
        return "Deployment", owner.name.removesuffix(f"-{template_hash}")
    if owner.kind == "Job" and (scheduled := _SCHEDULED_JOB.fullmatch(owner.name)):
        return "CronJob", scheduled[1]
    return None


def _group(api_version: str) -> str:
    return api_version.rpartition("/")[0]


class Directory:
    """An index of Recommendations by target."""

    def __init__(self) -> None:
        self._targets: dict[Key, Target] = {}
        self._by_workload: dict[Workload, set[Key]] = {}
        self._choosers: dict[str, dict[Key, Selector]] = {}

    def __len__(self) -> int:
        return len(self._targets)

    def put(self, key: Key, target: Target) -> None:
        self.drop(key)
        self._targets[key] = target
        match target:
            case Workload():
                self._by_workload.setdefault(target, set()).add(key)
            case Chosen(namespace, selector):
                self._choosers.setdefault(namespace, {})[key] = selector

    def drop(self, key: Key) -> None:
        target = self._targets.pop(key, None)
        match target:
            case Workload():
                self._by_workload[target].discard(key)
                if not self._by_workload[target]:
                    del self._by_workload[target]
            case Chosen(namespace, _):
                self._choosers[namespace].pop(key)
                if not self._choosers[namespace]:
                    del self._choosers[namespace]

    def of(self, pod: Pod) -> set[Key]:
        found: set[Key] = set()
        for workload in workloads_of(pod):
            found |= self._by_workload.get(workload, set())
            # A target without an API version means the kind of any group.
            found |= self._by_workload.get(msgspec.structs.replace(workload, group=""), set())
        for key, selector in self._choosers.get(pod.metadata.namespace, {}).items():
            if selector.matches(pod.metadata.labels):
                found.add(key)
        return found
