"""This module finds koord's programs among the workloads of a cluster, and Koordinator's own."""

from __future__ import annotations

import re

import msgspec

from koord.api.koordinator.protocol import DESCHEDULER_NAME
from koord.api.koordinator.protocol import SCHEDULER as SCHEDULER_NAME
from koord.api.model import Obj
from koord.api.schema import crd_manifests
from koord.cli.commands.doctor.facts import (
    ClusterFacts,
    Objects,
    entries,
    field,
    labels_of,
    mapping,
    name_of,
    namespace_of,
    number,
    readable,
    text,
)

MANAGER, SCHEDULER, DESCHEDULER, KOORDLET = "koord-manager", SCHEDULER_NAME, DESCHEDULER_NAME, "koordlet"
PROGRAMS = (MANAGER, SCHEDULER, DESCHEDULER, KOORDLET)
APP_LABEL = "koord-app"
_UPSTREAM_IMAGES = "koordinator-sh/"
_UPSTREAM_TAG = re.compile(r"v[0-9]")


_RELEASE_NAME, _RELEASE_NAMESPACE = "meta.helm.sh/release-name", "meta.helm.sh/release-namespace"


class HelmRelease(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    namespace: str


class ProgramWorkload(msgspec.Struct, frozen=True, kw_only=True):
    """ProgramWorkload is a Deployment or DaemonSet of one of the four programs, with how many pods it wants."""

    program: str
    kind: str
    namespace: str
    name: str
    account: str
    images: tuple[str, ...]
    wanted: int
    ready: int
    is_upstream: bool  # Koordinator's own image

    @property
    def title(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


def program_workloads(deployments: Objects, daemon_sets: Objects) -> list[ProgramWorkload]:
    """Return the workloads of the four programs."""
    found = []
    for kind, objects in (("Deployment", deployments), ("DaemonSet", daemon_sets)):
        for one in readable(objects):
            program = _program_of(one)
            if program:
                found.append(_workload(kind, program, one))
    return found


def own_workloads(facts: ClusterFacts) -> list[ProgramWorkload]:
    """Return those in the namespace that is looked at."""
    return program_workloads(facts.deployments, facts.daemon_sets)


def installed_programs(facts: ClusterFacts) -> frozenset[str]:
    return frozenset({one.program for one in own_workloads(facts)} | facts.in_process)


def release_of(obj: Obj) -> HelmRelease | None:
    """Return the release that an object belongs to, by the annotations that Helm puts on it."""
    annotations = mapping(obj, "metadata", "annotations")
    name, namespace = annotations.get(_RELEASE_NAME), annotations.get(_RELEASE_NAMESPACE)
    if not isinstance(name, str) or not isinstance(namespace, str) or not name:
        return None
    return HelmRelease(name=name, namespace=namespace)


def own_release(facts: ClusterFacts) -> HelmRelease | None:
    """Return the release that koord's programs are of; None where Helm did not install them."""
    for one in (*readable(facts.deployments), *readable(facts.daemon_sets)):
        release = release_of(one) if _program_of(one) else None
        if release is not None:
            return release
    return None


def own_crd_names() -> tuple[str, ...]:
    return tuple(str(one["metadata"]["name"]) for one in crd_manifests())


def is_installed(facts: ClusterFacts) -> bool:
    """Return whether anything of koord is there; if not, doctor tells whether it could be installed."""
    names = set(own_crd_names())
    return bool(installed_programs(facts)) or any(name_of(one) in names for one in readable(facts.crds))


def images_of(template: Obj) -> tuple[str, ...]:
    return tuple(image for one in entries(template, "spec", "containers") if (image := text(one, "image")))


def pods_of(facts: ClusterFacts, program: str) -> list[Obj]:
    return [one for one in readable(facts.pods) if labels_of(one).get(APP_LABEL) == program]


def is_ready(pod: Obj) -> bool:
    conditions = entries(pod, "status", "conditions")
    return any(text(one, "type") == "Ready" and text(one, "status") == "True" for one in conditions)


def _program_of(workload: Obj) -> str:
    label = labels_of(workload).get(APP_LABEL) or field(workload, "spec", "template", "metadata", "labels", APP_LABEL)
    if label in PROGRAMS:
        return str(label)
    return name_of(workload) if name_of(workload) in PROGRAMS else ""


def _workload(kind: str, program: str, one: Obj) -> ProgramWorkload:
    if kind == "Deployment":
        replicas = number(one, "spec", "replicas")
        wanted, ready = 1.0 if replicas is None else replicas, number(one, "status", "readyReplicas") or 0
    else:
        wanted = number(one, "status", "desiredNumberScheduled") or 0
        ready = number(one, "status", "numberReady") or 0
    images = images_of(field(one, "spec", "template") or {})
    return ProgramWorkload(
        program=program,
        kind=kind,
        namespace=namespace_of(one),
        name=name_of(one),
        account=text(one, "spec", "template", "spec", "serviceAccountName") or "default",
        images=images,
        wanted=int(wanted),
        ready=int(ready),
        is_upstream=any(_is_upstream_image(image, program) for image in images),
    )


def _is_upstream_image(image: str, program: str) -> bool:
    """Return whether an image is Koordinator's own: of its repository, or a copy of that in another registry, which
    keeps the program's name and a tag such as v1.8.0. koord has one image for all programs.
    """
    repository, _, tag = image.partition("@")[0].rpartition(":")
    return _UPSTREAM_IMAGES in image or (
        repository.rpartition("/")[2] == program and _UPSTREAM_TAG.match(tag) is not None
    )
