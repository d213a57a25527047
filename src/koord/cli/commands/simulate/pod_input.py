"""This module reads the pods that `koord simulate` decides about, completed as a server would if there is none
to ask.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec

from koord.api.kubernetes.builtin_kinds import PRIORITY_CLASSES
from koord.api.model import convert
from koord.cli import cluster_access
from koord.cli.up.local_scheduler import DEFAULT_SCHEDULER_NAME
from koord.scheduler.cache.pod_model import Pod
from koord.scheduler.explain.snapshot import ApiSnapshot, objects_of_documents
from koord.values.json_text import MalformedText
from koord.values.yaml_text import load_yaml_documents

ManifestObject = dict[str, Any]
MAX_PODS_PER_WORKLOAD = 1000  # pods of one workload that are tried at most


def read_objects(file: str) -> list[ManifestObject]:
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text()
    except OSError as error:
        cluster_access.fail(f"cannot read {file}: {error.strerror}")
    documents = load_yaml_documents(text)
    if isinstance(documents, MalformedText):
        cluster_access.fail(f"{file} {documents}")
    found = objects_of_documents(documents)
    if isinstance(found, str):
        cluster_access.fail(f"{file}: {found}")
    return found


def pods_from_objects(objects: list[ManifestObject], namespace: str, replicas: int | None) -> list[ManifestObject]:
    """Return the pods as they are, and of each workload as many as it wants."""
    found: list[ManifestObject] = []
    for each in objects:
        meta, spec = each.get("metadata") or {}, each.get("spec") or {}
        space = meta.get("namespace") or namespace
        if each.get("kind") == "Pod":
            found.append({**each, "metadata": {**meta, "namespace": space}})
        elif isinstance(spec.get("template"), dict):
            template = spec["template"]
            wanted = spec.get("replicas", spec.get("parallelism"))
            count = replicas or (1 if wanted is None else int(wanted))
            own = {**(template.get("metadata") or {}), "namespace": space}
            name = meta.get("name") or meta.get("generateName") or "pod"
            for number in range(min(count, MAX_PODS_PER_WORKLOAD)):
                body = {"apiVersion": "v1", "kind": "Pod", "spec": template.get("spec") or {}}
                found.append({**body, "metadata": {**own, "name": f"{name}-{number}"}})
    return found


def pod_display_name(pod: ManifestObject) -> str:
    meta = pod["metadata"]
    return str(meta.get("name") or f"{meta.get('generateName', '')}?")


def complete_pods(snapshot: ApiSnapshot, pods: list[ManifestObject]) -> list[Pod]:
    """Fill in what a server does and a scheduler reads: the scheduler's name, the priority, a UID."""
    classes = {c.metadata.name: c for c in snapshot.typed(PRIORITY_CLASSES)}
    fallback = next((c for c in classes.values() if c.global_default), None)
    typed: list[Pod] = []
    for number, plain in enumerate(pods):
        try:
            pod = convert(plain, Pod)
        except msgspec.ValidationError as error:
            cluster_access.fail(f"{pod_display_name(plain)}: {error}")
        spec = pod.spec
        if not spec.scheduler_name:
            spec = msgspec.structs.replace(spec, scheduler_name=DEFAULT_SCHEDULER_NAME)
        if spec.priority is None:
            chosen = classes.get(spec.priority_class_name) if spec.priority_class_name else fallback
            if spec.priority_class_name and chosen is None:
                cluster_access.fail(
                    f"{pod_display_name(plain)}: there is no PriorityClass {spec.priority_class_name} in the snapshot"
                )
            if chosen is not None:
                spec = msgspec.structs.replace(spec, priority=chosen.value, preemption_policy=chosen.preemption_policy)
        meta = msgspec.structs.replace(pod.metadata, uid=pod.metadata.uid or f"what-if-{number}")
        typed.append(msgspec.structs.replace(pod, metadata=meta, spec=spec))
    return typed
