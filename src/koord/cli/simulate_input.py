"""This module reads the pods that `koord simulate` decides about, completed as a server would if there is none
to ask.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
import yaml

from koord.api.builtin import PRIORITY_CLASSES
from koord.api.model import convert
from koord.cli import access
from koord.cli.local_scheduler import KUBERNETES
from koord.scheduler.explain.snapshot import Snapshot, listed
from koord.scheduler.state.wire import Pod

Plain = dict[str, Any]
MANY = 1000  # pods of one workload that are tried at most


def objects_in(file: str) -> list[Plain]:
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text()
        found = listed(yaml.safe_load_all(text))
    except OSError as error:
        access.fail(f"cannot read {file}: {error.strerror}")
    except yaml.YAMLError as error:
        access.fail(f"{file}: not YAML: {' '.join(str(error).split())}")
    if isinstance(found, str):
        access.fail(f"{file}: {found}")
    return found


def pods_of(objects: list[Plain], namespace: str, replicas: int | None) -> list[Plain]:
    """Return the pods as they are, and of each workload as many as it wants."""
    found: list[Plain] = []
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
            for number in range(min(count, MANY)):
                body = {"apiVersion": "v1", "kind": "Pod", "spec": template.get("spec") or {}}
                found.append({**body, "metadata": {**own, "name": f"{name}-{number}"}})
    return found


def name_of(pod: Plain) -> str:
    meta = pod["metadata"]
    return str(meta.get("name") or f"{meta.get('generateName', '')}?")


def completed(snapshot: Snapshot, pods: list[Plain]) -> list[Pod]:
    """Fill in what a server does and a scheduler reads: the scheduler's name, the priority, a UID."""
    classes = {c.metadata.name: c for c in snapshot.typed(PRIORITY_CLASSES)}
    fallback = next((c for c in classes.values() if c.global_default), None)
    typed: list[Pod] = []
    for number, plain in enumerate(pods):
        try:
            pod = convert(plain, Pod)
        except msgspec.ValidationError as error:
            access.fail(f"{name_of(plain)}: {error}")
        spec = pod.spec
        if not spec.scheduler_name:
            spec = msgspec.structs.replace(spec, scheduler_name=KUBERNETES)
        if spec.priority is None:
            chosen = classes.get(spec.priority_class_name) if spec.priority_class_name else fallback
            if spec.priority_class_name and chosen is None:
                access.fail(f"{name_of(plain)}: there is no PriorityClass {spec.priority_class_name} in the snapshot")
            if chosen is not None:
                spec = msgspec.structs.replace(spec, priority=chosen.value, preemption_policy=chosen.preemption_policy)
        meta = msgspec.structs.replace(pod.metadata, uid=pod.metadata.uid or f"what-if-{number}")
        typed.append(msgspec.structs.replace(pod, metadata=meta, spec=spec))
    return typed
