"""This module checks for other software that does the same work on the same cluster, by well-known names and labels."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from koord.api.model import Obj
from koord.cli.commands.doctor import installation
from koord.cli.commands.doctor.facts import (
    ClusterFacts,
    field,
    labels_of,
    name_of,
    namespace_of,
    readable,
    unread_findings,
)
from koord.cli.commands.doctor.finding import Diagnosis, Finding, name_list

CONFLICTS = "conflicts"

PROGRAM_TWICE = Diagnosis(
    kind=("program-twice", CONFLICTS, "error"),
    title="One of the programs is installed twice, as in two namespaces or beside Koordinator's own.",
    why="Leases are of a namespace: both lead, and undo each other's writes.",
    fix="kubectl -n {namespace} delete {kind} {name}",
)
KOORDINATOR_PROGRAM = Diagnosis(
    kind=("koordinator-program", CONFLICTS, "info"),
    title="A program runs Koordinator's own image.",
    why="koord's programs work beside it, as long as each program is there once.",
)
SIGS_DESCHEDULER = Diagnosis(
    kind=("sigs-descheduler", CONFLICTS, "warning"),
    title="The descheduler of Kubernetes' SIGs is installed.",
    why="It evicts without reservations and migration jobs; two deschedulers do not share limits and may move one pod "
    "back and forth.",
    fix="kubectl -n {namespace} delete {kind} {name}",
)
HAMI = Diagnosis(
    kind=("hami", CONFLICTS, "warning"),
    title="HAMi's device plugin or scheduler is installed.",
    why="It gives out the same GPUs by its own accounts: a card can be promised twice.",
    fix="kubectl -n {namespace} delete {kind} {name}",
)
MPS = Diagnosis(
    kind=("mps", CONFLICTS, "warning"),
    title="CUDA MPS is run by NVIDIA's device plugin.",
    why="Interception by HAMi-core and MPS exclude each other: models fail to load on shared GPUs.",
    fix="kubectl -n {namespace} get {kind} {name}",
)
OTHER_AGENT = Diagnosis(
    kind=("other-node-agent", CONFLICTS, "warning"),
    title="Another agent that writes pods' cgroups is installed.",
    why="It and koordlet overwrite each other's values.",
    fix="kubectl -n {namespace} delete {kind} {name}",
)

DIAGNOSES = (PROGRAM_TWICE, KOORDINATOR_PROGRAM, SIGS_DESCHEDULER, HAMI, MPS, OTHER_AGENT)


class ForeignSoftware(msgspec.Struct, frozen=True, kw_only=True):
    """ForeignSoftware says how a workload is recognised: part of its name or of an image, or its name label."""

    title: str
    diagnosis: Diagnosis
    names: tuple[str, ...] = ()
    images: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()


FOREIGN = (
    ForeignSoftware(
        title="the descheduler of Kubernetes' SIGs",
        diagnosis=SIGS_DESCHEDULER,
        images=("/descheduler/descheduler",),
        labels=("descheduler",),
    ),
    ForeignSoftware(
        title="HAMi",
        diagnosis=HAMI,
        names=("hami-device-plugin", "hami-scheduler"),
        images=("projecthami/hami",),
        labels=("hami",),
    ),
    ForeignSoftware(title="CUDA MPS", diagnosis=MPS, names=("mps-control-daemon",)),
    ForeignSoftware(title="volcano-agent", diagnosis=OTHER_AGENT, names=("volcano-agent",)),
    ForeignSoftware(title="katalyst-agent", diagnosis=OTHER_AGENT, names=("katalyst-agent",)),
)
_NAME_LABEL = "app.kubernetes.io/name"


def check_conflicts(facts: ClusterFacts) -> list[Finding]:
    found = unread_findings(CONFLICTS, facts.all_deployments, facts.all_daemon_sets, facts.all_cron_jobs)
    found += _program_findings(facts)
    for kind, objects in (
        ("Deployment", facts.all_deployments),
        ("DaemonSet", facts.all_daemon_sets),
        ("CronJob", facts.all_cron_jobs),
    ):
        for one in readable(objects):
            for foreign in FOREIGN:
                if _is_foreign(foreign, kind, one) and not _is_harmless(foreign, facts):
                    where = f"{kind} {namespace_of(one)}/{name_of(one)}"
                    values = {"namespace": namespace_of(one), "kind": kind.lower(), "name": name_of(one)}
                    found.append(foreign.diagnosis.found(f"{where} is {foreign.title}", (where,), **values))
    return found


def _program_findings(facts: ClusterFacts) -> Iterator[Finding]:
    workloads = installation.program_workloads(facts.all_deployments, facts.all_daemon_sets)
    for program in installation.PROGRAMS:
        several = [one for one in workloads if one.program == program]
        if len(several) > 1:
            other = next((one for one in several if one.namespace != facts.namespace), several[-1])
            titles = [one.title for one in several]
            values = {"namespace": other.namespace, "kind": other.kind.lower(), "name": other.name}
            yield PROGRAM_TWICE.found(f"{program} is installed as {name_list(titles)}", titles, **values)
    upstream = [one.title for one in workloads if one.is_upstream]
    if upstream:
        yield KOORDINATOR_PROGRAM.found(f"Koordinator's own image runs in {name_list(upstream)}", upstream)


def _is_harmless(foreign: ForeignSoftware, facts: ClusterFacts) -> bool:
    """Return whether nothing of koord does the same work: a descheduler conflicts with a descheduler only."""
    return foreign.diagnosis is SIGS_DESCHEDULER and bool(
        installation.installed_programs(facts)
        and installation.DESCHEDULER not in installation.installed_programs(facts)
    )


def _is_foreign(foreign: ForeignSoftware, kind: str, one: Obj) -> bool:
    path = ("spec", "jobTemplate", "spec", "template") if kind == "CronJob" else ("spec", "template")
    images = installation.images_of(field(one, *path) or {})
    return (
        any(part in name_of(one) for part in foreign.names)
        or any(part in image for part in foreign.images for image in images)
        or labels_of(one).get(_NAME_LABEL) in foreign.labels
    )
