"""This module checks the programs: their pods, the leases of their leaders, and the versions of their images."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import timedelta

from koord.api.model import Obj
from koord.cli.commands.doctor import installation
from koord.cli.commands.doctor.facts import (
    ClusterFacts,
    Unread,
    entries,
    mapping,
    moment,
    name_of,
    number,
    text,
    unread_findings,
)
from koord.cli.commands.doctor.finding import Diagnosis, Finding, name_list
from koord.cli.printing import format_duration
from koord.manager.program import LEASE_NAME

PROGRAM_PODS, LEASES, VERSIONS = "programs", "leases", "versions"
LEASE_NAMES = {
    installation.MANAGER: LEASE_NAME,
    installation.SCHEDULER: installation.SCHEDULER,
    installation.DESCHEDULER: installation.DESCHEDULER,
}
_STARTING = ("ContainerCreating", "PodInitializing")
_DEFAULT_LEASE_S = 15.0
_CLOCK_TOLERANCE = timedelta(seconds=30)  # this machine's clock is not the cluster's

NOT_INSTALLED = Diagnosis(
    kind=("not-installed", PROGRAM_PODS, "info"),
    title="No program of koord is installed.",
    why="Only what an installation would meet was checked.",
    fix="helm install koord charts/koord --set imageRepositoryHost=registry.example.com --wait",
)
INSTALLED_ELSEWHERE = Diagnosis(
    kind=("installed-elsewhere", PROGRAM_PODS, "error"),
    title="No program is in the namespace that was looked at, but some are in another.",
    why="Nothing of that installation was checked.",
    fix="koord doctor --namespace {namespace}",
)
PROGRAM_MISSING = Diagnosis(
    kind=("program-missing", PROGRAM_PODS, "info"),
    title="One of the four programs is not installed beside the others.",
    why="Each works alone, but what it does is done by nobody.",
    fix="koord manifests --namespace {namespace} --component {component} | kubectl apply --server-side -f -",
)
PROGRAM_NOT_READY = Diagnosis(
    kind=("program-not-ready", PROGRAM_PODS, "error"),
    title="Fewer pods of a program are ready than its workload wants.",
    why="An installer says deployed when the objects are there; the program does not work.",
    fix="kubectl -n {namespace} describe {kind} {name}",
)
POD_WAITING = Diagnosis(
    kind=("pod-waiting", PROGRAM_PODS, "error"),
    title="A container of a program cannot start or crashes.",
    why="The reason and the container's last words say why it does not run.",
    fix="kubectl -n {namespace} logs {pod} --previous",
)
POD_NOT_SCHEDULED = Diagnosis(
    kind=("pod-not-scheduled", PROGRAM_PODS, "error"),
    title="No node was found for a pod of a program.",
    why="The program does not run until a node takes the pod.",
    fix="kubectl -n {namespace} describe pod {pod}",
)
LEASE_MISSING = Diagnosis(
    kind=("lease-missing", LEASES, "warning"),
    title="A program with several replicas has no Lease.",
    why="No replica ever led: none may write leases, none started, or election is off and all replicas work.",
    fix="kubectl -n {namespace} logs deployment/{program}",
)
LEASE_WITHOUT_HOLDER = Diagnosis(
    kind=("lease-without-holder", LEASES, "error"),
    title="A Lease has no holder.",
    why="The last leader gave it back and nobody took it: nothing is reconciled.",
    fix="kubectl -n {namespace} logs deployment/{program}",
)
LEASE_STALE = Diagnosis(
    kind=("lease-stale", LEASES, "error"),
    title="A Lease was not renewed within its duration.",
    why="The leader is gone or cannot write, and no other replica took over.",
    fix="kubectl -n {namespace} logs deployment/{program}",
)
LEASE_FOREIGN_HOLDER = Diagnosis(
    kind=("lease-foreign-holder", LEASES, "warning"),
    title="The holder of a Lease is no pod of the program.",
    why="Another process leads, such as Koordinator's own program or one that was started by hand.",
    fix="kubectl -n {namespace} get lease {lease} -o yaml",
)
IMAGES_DIFFER = Diagnosis(
    kind=("images-of-a-program-differ", VERSIONS, "warning"),
    title="Pods of one program run different images.",
    why="A rollout is under way or stuck: which version leads is chance.",
    fix="kubectl -n {namespace} rollout status {kind}/{name}",
)
VERSIONS_DIFFER = Diagnosis(
    kind=("versions-differ", VERSIONS, "warning"),
    title="Programs have images of different versions.",
    why="They agree through annotations and objects that a version may change.",
    fix="koord manifests --namespace {namespace} --image IMAGE | kubectl apply --server-side --force-conflicts -f -",
)
COMMAND_VERSION_DIFFERS = Diagnosis(
    kind=("command-version-differs", VERSIONS, "info"),
    title="This command has another version than the programs.",
    why="It judges by its own tables of rights, kinds and settings.",
    fix="koord --version",
)

DIAGNOSES = (
    NOT_INSTALLED,
    INSTALLED_ELSEWHERE,
    PROGRAM_MISSING,
    PROGRAM_NOT_READY,
    POD_WAITING,
    POD_NOT_SCHEDULED,
    LEASE_MISSING,
    LEASE_WITHOUT_HOLDER,
    LEASE_STALE,
    LEASE_FOREIGN_HOLDER,
    IMAGES_DIFFER,
    VERSIONS_DIFFER,
    COMMAND_VERSION_DIFFERS,
)


def check_programs(facts: ClusterFacts) -> list[Finding]:
    found = unread_findings(PROGRAM_PODS, facts.deployments, facts.daemon_sets, facts.pods)
    namespace = facts.namespace
    if not isinstance(facts.deployments, Unread) and not isinstance(facts.daemon_sets, Unread):
        if not installation.installed_programs(facts):
            return [*found, _nothing_installed(facts)]
        for program in (one for one in installation.PROGRAMS if one not in installation.installed_programs(facts)):
            component = program.removeprefix("koord-")
            what = f"{program} is not installed in namespace {namespace}"
            found.append(PROGRAM_MISSING.found(what, (program,), namespace=namespace, component=component))
    for one in installation.own_workloads(facts):
        if one.ready < one.wanted:
            what = f"{one.title}: {one.ready} of {one.wanted} pods are ready"
            kind = one.kind.lower()
            found.append(PROGRAM_NOT_READY.found(what, (one.name,), namespace=namespace, kind=kind, name=one.name))
    for program in installation.PROGRAMS:
        for pod in installation.pods_of(facts, program):
            found += _pod_findings(pod, namespace)
    return found


def _nothing_installed(facts: ClusterFacts) -> Finding:
    others = [
        one
        for one in installation.program_workloads(facts.all_deployments, facts.all_daemon_sets)
        if one.namespace != facts.namespace and not one.is_upstream
    ]
    if not others:
        return NOT_INSTALLED.found(f"no program of koord is installed in namespace {facts.namespace}")
    titles = [one.title for one in others]
    what = f"no program of koord is installed in namespace {facts.namespace}, but {name_list(titles)}"
    return INSTALLED_ELSEWHERE.found(what, titles, namespace=others[0].namespace)


def _pod_findings(pod: Obj, namespace: str) -> list[Finding]:
    name, found = name_of(pod), []
    for one in entries(pod, "status", "conditions"):
        if text(one, "type") == "PodScheduled" and text(one, "status") == "False":
            what = f"pod {name} has no node: {text(one, 'message') or text(one, 'reason')}"
            found.append(POD_NOT_SCHEDULED.found(what, (name,), namespace=namespace, pod=name))
    for one in (*entries(pod, "status", "initContainerStatuses"), *entries(pod, "status", "containerStatuses")):
        reason = text(one, "state", "waiting", "reason")
        if not reason or reason in _STARTING:
            continue
        ended = mapping(one, "lastState", "terminated")
        told = [text(one, "state", "waiting", "message"), text(ended, "reason"), text(ended, "message")]
        code = number(ended, "exitCode")
        told += [f"exit code {code:.0f}"] if code is not None else []
        words = "; ".join(part for part in told if part)
        what = f"pod {name}, container {text(one, 'name')}: {reason}{f' ({words})' if words else ''}"
        found.append(POD_WAITING.found(what, (name,), namespace=namespace, pod=name))
    return found


def check_leases(facts: ClusterFacts) -> list[Finding]:
    if isinstance(facts.leases, Unread):
        return unread_findings(LEASES, facts.leases)
    present = {name_of(one): one for one in facts.leases}
    found = []
    for workload in installation.own_workloads(facts):
        lease_name = LEASE_NAMES.get(workload.program)
        if lease_name is None or workload.wanted == 0:
            continue
        names = {"namespace": facts.namespace, "program": workload.name, "lease": lease_name}
        lease = present.get(lease_name)
        if lease is None:
            if workload.wanted > 1:
                what = f"Lease {facts.namespace}/{lease_name} of {workload.program} does not exist"
                found.append(LEASE_MISSING.found(what, (lease_name,), **names))
            continue
        found += _lease_findings(facts, workload.program, lease, names)
    return found


def _lease_findings(facts: ClusterFacts, program: str, lease: Obj, names: dict[str, str]) -> list[Finding]:
    title, holder = f"Lease {facts.namespace}/{name_of(lease)}", text(lease, "spec", "holderIdentity")
    if not holder:
        return [LEASE_WITHOUT_HOLDER.found(f"{title} has no holder", (name_of(lease),), **names)]
    found = []
    renewed = moment(lease, "spec", "renewTime")
    duration_s = number(lease, "spec", "leaseDurationSeconds") or _DEFAULT_LEASE_S
    if renewed is None or facts.at - renewed > timedelta(seconds=abs(duration_s)) + _CLOCK_TOLERANCE:
        since = "never" if renewed is None else f"{format_duration((facts.at - renewed).total_seconds())} ago"
        what = f"{title} was renewed {since} by {holder}, its duration is {duration_s:.0f} s"
        found.append(LEASE_STALE.found(what, (name_of(lease),), **names))
    # The identity is the host name, which is the pod's name, and a unique part.
    pods = [name_of(pod) for pod in installation.pods_of(facts, program)]
    if not isinstance(facts.pods, Unread) and not any(name and holder.startswith(name) for name in pods):
        what = f"{title} is held by {holder}, which is no pod of {program}"
        found.append(LEASE_FOREIGN_HOLDER.found(what, (name_of(lease),), **names))
    return found


def check_versions(facts: ClusterFacts) -> list[Finding]:
    found = unread_findings(VERSIONS, facts.deployments, facts.daemon_sets, facts.pods)
    by_program: dict[str, str] = {}
    for workload in installation.own_workloads(facts):
        images = {image for pod in installation.pods_of(facts, workload.program) for image in _program_images(pod)}
        if len(images) > 1:
            what = f"pods of {workload.program} run {name_list(sorted(images))}"
            names = {"namespace": facts.namespace, "kind": workload.kind.lower(), "name": workload.name}
            found.append(IMAGES_DIFFER.found(what, sorted(images), **names))
        version = next((tag for image in workload.images if (tag := image_version(image))), "")
        if version and not workload.is_upstream:
            by_program[workload.program] = version
    versions = set(by_program.values())
    told = ", ".join(f"{program} {version}" for program, version in sorted(by_program.items()))
    if len(versions) > 1:
        found.append(VERSIONS_DIFFER.found(told, by_program, namespace=facts.namespace))
    elif versions and versions != {facts.koord_version}:
        what = f"this command is {facts.koord_version}, the programs are {next(iter(versions))}"
        found.append(COMMAND_VERSION_DIFFERS.found(what))
    return found


def _program_images(pod: Obj) -> Iterable[str]:
    """Return the image of a pod's first container: the program; those beside it have versions of their own."""
    return [image for one in entries(pod, "spec", "containers")[:1] if (image := text(one, "image"))]


def image_version(image: str) -> str:
    """Return the version in an image's tag without its v, or "" where the tag is none."""
    tag = image.partition("@")[0].rpartition("/")[2].partition(":")[2]
    return tag.removeprefix("v") if re.fullmatch(r"v?\d+(\.\w+)+[\w.+-]*", tag) else ""
