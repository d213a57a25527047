"""This module concludes from facts what stands in the way of the move, what it changes and what is not supported, and
puts together what is told of it, with the commands of the move and of the way back.
"""

from __future__ import annotations

import re
import shlex

import msgspec

from koord.api.koordinator.custom_kinds import CUSTOM_KINDS
from koord.api.koordinator.yarn import OPERATOR_PROGRAM
from koord.api.model import Obj
from koord.cli.commands.doctor.api_server_checks import OLDEST_MINOR_OF_CHART as OLDEST_MINOR
from koord.cli.commands.doctor.configuration_checks import CONFIG_MAPS, config_map_findings
from koord.cli.commands.doctor.facts import Unread, field, name_of, readable, text, unread_findings
from koord.cli.commands.doctor.finding import SEVERITIES, Diagnosis, Finding, Severity, name_list
from koord.cli.commands.doctor.installation import PROGRAMS, HelmRelease, images_of, program_workloads
from koord.cli.commands.doctor.program_checks import LEASE_NAMES
from koord.cli.commands.migrate_from_koordinator import program_arguments
from koord.cli.commands.migrate_from_koordinator.chart_values import extract_values, workloads_by_program
from koord.cli.commands.migrate_from_koordinator.facts import (
    DEVICE_DAEMON,
    InstalledDefinition,
    InstalledObject,
    KoordinatorFacts,
    LeaseHolder,
    helm_release,
    installed_definitions,
    installed_objects,
    lease_holders,
    sources,
    upstream_workloads,
)
from koord.cli.commands.migrate_from_koordinator.program_arguments import Argument
from koord.cli.manifests.manifests import IMAGE
from koord.manager.webhook_server.cert_rotator import SECRET_NAME

CLUSTER, PROGRAM, DEFINITION, CONFIGURATION = "cluster", "programs", "crds", "configuration"
_OTHER_PARTS = {  # of the Koordinator project, from charts of their own
    "koord-queue": "koord-queue",
    "koord-queue-controllers": "koord-queue",
}

SERVER_TOO_OLD = Diagnosis(
    kind=("server-too-old", CLUSTER, "error"),
    title=f"The API server is older than Kubernetes 1.{OLDEST_MINOR}.",
    why="The chart refuses it. Koordinator 1.8 supports older servers; stay with it until the cluster is upgraded.",
    fix="kubectl version",
)
NOTHING_INSTALLED = Diagnosis(
    kind=("nothing-installed", CLUSTER, "info"),
    title="No program of Koordinator is installed.",
    why="There is nothing to take over: koord is installed as on any cluster.",
)
TWO_INSTALLATIONS = Diagnosis(
    kind=("two-installations", CLUSTER, "error"),
    title="Programs of Koordinator are in several namespaces.",
    why="Leases are of a namespace: the programs of the other namespace would go on working beside koord's.",
    fix="koord migrate-from-koordinator --dry-run --namespace {namespace}",
)
DEVICE_DAEMON_GOES = Diagnosis(
    kind=("device-daemon-goes", PROGRAM, "warning"),
    title="koord-device-daemon runs only where it is asked for.",
    why="koordlet finds NVIDIA cards itself. Cards of Huawei, Cambricon, Kunlun and MetaX are described to it by "
    "koord-device-daemon: without deviceDaemon.enabled=true, no Device of theirs is reported.",
)
OTHER_PART = Diagnosis(
    kind=("other-part", PROGRAM, "warning"),
    title="Another part of the Koordinator project is installed.",
    why="koord has no such program. It stays as it is, and works with koord as far as it uses Koordinator's objects.",
)
YARN_OPERATOR = Diagnosis(
    kind=("yarn-operator", PROGRAM, "warning"),
    title="Koordinator's YARN operator is installed, from a chart of its own.",
    why="koord's has the same name and lease. It works until its chart is removed and koordYarnOperator.enabled set.",
    fix="helm list -A --filter yarn-copilot",
)
FLAG_REFUSED = Diagnosis(
    kind=("flag-refused", PROGRAM, "warning"),
    title="A program has a flag that koord's program refuses.",
    why="The values leave it out, and what it did is not done.",
)
GATE_REFUSED = Diagnosis(
    kind=("gate-refused", PROGRAM, "warning"),
    title="A program has a feature gate that koord's program refuses.",
    why="The values leave it out, and what it switches is as without it.",
)
WITHOUT_EFFECT = Diagnosis(
    kind=("without-effect", PROGRAM, "info"),
    title="A program has a flag or feature gate that koord's program takes without effect.",
    why="Nothing has to be done.",
)
LEASE_HELD = Diagnosis(
    kind=("lease-held", PROGRAM, "info"),
    title="A program of Koordinator holds its lease.",
    why="koord's program waits until it is given back or has expired, so that never two of them decide.",
)
OBJECTS_GO = Diagnosis(
    kind=("objects-go", PROGRAM, "info"),
    title="Objects of the release have no counterpart in koord's chart.",
    why="Helm deletes them with the upgrade, and makes them again with the rollback.",
)
DEFINITION_GOES = Diagnosis(
    kind=("definition-goes", DEFINITION, "error"),
    title="The release has a CustomResourceDefinition that koord's chart has not.",
    why="Helm would delete it with the upgrade, and every object of its kind with it.",
    fix="kubectl annotate crd {name} helm.sh/resource-policy=keep",
)
DEFINITION_VERSION = Diagnosis(
    kind=("definition-version", DEFINITION, "error"),
    title="A CustomResourceDefinition serves a version that koord's has not.",
    why="Clients that ask for it would be answered 404, and stored objects of it could not be read.",
    fix="kubectl get crd {name} -o yaml",
)
DIAGNOSES = (
    SERVER_TOO_OLD,
    NOTHING_INSTALLED,
    TWO_INSTALLATIONS,
    DEVICE_DAEMON_GOES,
    OTHER_PART,
    YARN_OPERATOR,
    FLAG_REFUSED,
    GATE_REFUSED,
    WITHOUT_EFFECT,
    LEASE_HELD,
    OBJECTS_GO,
    DEFINITION_GOES,
    DEFINITION_VERSION,
)


def cluster_findings(facts: KoordinatorFacts) -> list[Finding]:
    unread = {id(one): one for _, one in sources(facts) if isinstance(one, Unread)}
    found = unread_findings(CLUSTER, facts.version, facts.leases, *unread.values())
    if not isinstance(facts.version, Unread):
        shown = text(facts.version, "gitVersion")
        numbers = re.match(r"v?(\d+)\.(\d+)", shown)
        if numbers and (int(numbers[1]), int(numbers[2])) < (1, OLDEST_MINOR):
            found.append(SERVER_TOO_OLD.found(f"the API server is {shown}, the chart needs 1.{OLDEST_MINOR}"))
    if not upstream_workloads(facts) and not isinstance(facts.deployments, Unread):
        what = f"no program of Koordinator is installed in namespace {facts.namespace}"
        found.append(NOTHING_INSTALLED.found(what))
    everywhere = program_workloads(facts.all_deployments, facts.all_daemon_sets)
    others = [one for one in everywhere if one.is_upstream and one.namespace != facts.namespace]
    if others and upstream_workloads(facts):
        titles = [one.title for one in others]
        found.append(
            TWO_INSTALLATIONS.found(
                f"Koordinator is in {facts.namespace} and as {name_list(titles)}", titles, namespace=others[0].namespace
            )
        )
    return found


def program_findings(
    facts: KoordinatorFacts, objects: tuple[InstalledObject, ...], leases: tuple[LeaseHolder, ...]
) -> list[Finding]:
    found = []
    daemons = [one.title for one in objects if one.name == DEVICE_DAEMON]
    if daemons:
        found.append(DEVICE_DAEMON_GOES.found(f"{name_list(daemons)} goes", daemons))
    for kind, workloads in (("Deployment", facts.all_deployments), ("DaemonSet", facts.all_daemon_sets)):
        for one in readable(workloads):
            part = _OTHER_PARTS.get(name_of(one))
            title = f"{kind} {text(one, 'metadata', 'namespace')}/{name_of(one)}"
            if part:
                found.append(OTHER_PART.found(f"{title} is of {part}", (title,)))
            elif name_of(one) == OPERATOR_PROGRAM:
                found.append(YARN_OPERATOR.found(f"{title} is the YARN operator", (title,)))
    for lease in leases:
        what = f"{lease.program} of koord waits for the Lease {lease.lease}, which {lease.holder} holds"
        found.append(LEASE_HELD.found(what, (lease.lease,)))
    gone = [one.title for one in objects if one.outcome == "removed"]
    if gone:
        found.append(OBJECTS_GO.found(f"{len(gone)} objects go: {', '.join(gone)}", gone))
    return found


def argument_findings(program: str, flags: list[Argument], gates: list[Argument]) -> list[Finding]:
    found = []
    for title, arguments, refused in (("flag", flags, FLAG_REFUSED), ("feature gate", gates, GATE_REFUSED)):
        dashes = "--" if title == "flag" else ""
        for one in arguments:
            shown = f"{dashes}{one.name}={one.value}" if one.value else f"{dashes}{one.name}"
            if one.verdict == "refused":
                found.append(refused.found(f"{program}: {title} {shown}: {one.why}", (program,)))
        idle = [f"{dashes}{one.name} ({one.why})" for one in arguments if one.verdict == "no effect"]
        if idle:
            found.append(WITHOUT_EFFECT.found(f"{program}: {title} {'; '.join(idle)}", (program,)))
    return found


def definition_findings(definitions: tuple[InstalledDefinition, ...]) -> list[Finding]:
    found = []
    for one in definitions:
        if one.removed:
            what = f"CustomResourceDefinition {one.name} would be deleted"
            found.append(DEFINITION_GOES.found(what, (one.name,), name=one.name))
        if one.missing:
            what = f"CustomResourceDefinition {one.name} serves {name_list(one.missing)}, which koord does not know"
            found.append(DEFINITION_VERSION.found(what, (one.name,), name=one.name))
    return found


def configuration_findings(facts: KoordinatorFacts) -> list[Finding]:
    """Return what koord's readers say of the configurations, with the line in the entry."""
    found = []
    for one in readable(facts.config_maps):
        if name_of(one) in CONFIG_MAPS:
            found += config_map_findings(facts.namespace, name_of(one), one)
    return found


def programs_in_order(facts: KoordinatorFacts) -> list[str]:
    there = {one.program for one in upstream_workloads(facts)}
    return [program for program in PROGRAMS if program in there]


def documentation_rows() -> str:
    """Return the rows of the table of findings in docs/install.md."""
    return "".join(f"| `{one.id}` | {one.severity} | {one.title} | {one.why} |\n" for one in DIAGNOSES)


VALUES_FILE = "koord-values.yaml"

CHART = "charts/koord"
REGISTRY = "--set imageRepositoryHost=registry.example.com"  # which one, only the reader knows


class MoveStep(msgspec.Struct, frozen=True, kw_only=True):
    """MoveStep is one command, with what it does; an empty command is something to do by hand."""

    title: str
    command: str


def move_steps(release: HelmRelease | None, namespace: str, values_file: str, *, installed: bool) -> list[MoveStep]:
    """Return the commands in order: save, keep, upgrade, look."""
    kinds = ",".join(dict.fromkeys(f"{one.plural}.{one.group}" for one in CUSTOM_KINDS))
    values = shlex.quote(values_file)
    steps = []
    if installed:
        steps += [
            MoveStep(
                title="Save the objects of Koordinator's kinds",
                command=f"kubectl get {kinds} --all-namespaces --ignore-not-found -o yaml > koordinator-objects.yaml",
            ),
            MoveStep(
                title="Write the values of this installation to a file, and read it",
                command=f"koord migrate-from-koordinator --dry-run --namespace {shlex.quote(namespace)} "
                f"--values-file {values}",
            ),
        ]
    given = f"-f {values} {REGISTRY}" if installed else REGISTRY
    if release is not None:
        name, place = shlex.quote(release.name), shlex.quote(release.namespace)
        steps.append(
            MoveStep(
                title="Keep the certificate of the webhooks, which koord's chart does not have and Helm would delete",
                command=f"kubectl --namespace {shlex.quote(namespace)} annotate secret {SECRET_NAME} "
                "helm.sh/resource-policy=keep --overwrite",
            )
        )
        steps.append(
            MoveStep(
                title="Upgrade the release in place; do not uninstall it, which would delete every object of its kinds",
                command=f"helm upgrade {name} {CHART} --namespace {place} {given} --wait --timeout 15m",
            )
        )
    else:
        owner = " --take-ownership" if installed else ""
        steps.append(
            MoveStep(
                title="Install the chart over what is there" if installed else "Install the chart",
                command=f"helm install koord {CHART} {given}{owner} --wait --timeout 15m",
            )
        )
    place = shlex.quote(namespace)
    return [
        *steps,
        MoveStep(title="Look for what is wrong", command=f"koord doctor --namespace {place}"),
    ]


def return_steps(release: HelmRelease | None, namespace: str, *, installed: bool) -> list[MoveStep]:
    """Return the commands that bring Koordinator back."""
    if not installed:
        return [MoveStep(title="Uninstall koord; objects of its kinds stay", command="helm uninstall koord")]
    if release is not None:
        name, place = shlex.quote(release.name), shlex.quote(release.namespace)
        return [
            MoveStep(
                title="Have each koordlet put back the kernel files that it wrote, which Koordinator's may not know",
                command=f"koord restore-nodes --koordlet-only --namespace {shlex.quote(namespace)}",
            ),
            MoveStep(
                title="Roll the release back to Koordinator's chart, the revision before the upgrade",
                command=f"helm rollback {name} --namespace {place} --wait --timeout 15m",
            ),
        ]
    return [
        MoveStep(title="Uninstall koord; objects of its kinds stay", command="helm uninstall koord"),
        MoveStep(title="Apply again what Koordinator was installed from, with your own tool", command=""),
    ]


class ProgramMove(msgspec.Struct, frozen=True, kw_only=True):
    """ProgramMove says what a program of Koordinator runs now, and how koord's program takes its arguments."""

    program: str
    workload: str
    images: tuple[str, ...]
    flags: tuple[program_arguments.Argument, ...]
    gates: tuple[program_arguments.Argument, ...]


class MoveReport(msgspec.Struct, frozen=True, kw_only=True):
    """MoveReport is the answer of `koord migrate-from-koordinator`; findings of severity error stand in the way."""

    koord_version: str
    server_version: str
    namespace: str
    image: str  # of all programs of koord, in the registry that the move names
    release: HelmRelease | None
    programs: tuple[ProgramMove, ...]
    definitions: tuple[InstalledDefinition, ...]
    objects: tuple[InstalledObject, ...]
    leases: tuple[LeaseHolder, ...]
    findings: tuple[Finding, ...]
    values: Obj
    move: tuple[MoveStep, ...]
    back: tuple[MoveStep, ...]

    def count(self, severity: Severity) -> int:
        return sum(one.severity == severity for one in self.findings)


def make_report(facts: KoordinatorFacts, koord_version: str, values_file: str = VALUES_FILE) -> MoveReport:
    tables = program_arguments.program_tables()
    release = helm_release(facts)
    workloads = workloads_by_program(facts)
    programs, found = [], cluster_findings(facts)
    for program in programs_in_order(facts):
        workload = workloads[program]
        words = program_arguments.command_line(program_arguments.container_of(workload, program))
        flags = program_arguments.judge_flags(program, words, tables[program])
        gates = program_arguments.judge_gates(program_arguments.gate_text(words), tables[program])
        found += argument_findings(program, flags, gates)
        programs.append(
            ProgramMove(
                program=program,
                workload=f"{'DaemonSet' if program == 'koordlet' else 'Deployment'} {name_of(workload)}",
                images=images_of(field(workload, "spec", "template") or {}),
                flags=tuple(flags),
                gates=tuple(gates),
            )
        )
    objects, definitions = installed_objects(facts), installed_definitions(facts)
    leases = lease_holders(facts, LEASE_NAMES.items())
    found += program_findings(facts, objects, leases)
    found += definition_findings(definitions)
    found += configuration_findings(facts)
    found.sort(key=lambda one: SEVERITIES.index(one.severity))
    installed = bool(programs)
    return MoveReport(
        koord_version=koord_version,
        server_version="" if isinstance(facts.version, Unread) else text(facts.version, "gitVersion"),
        namespace=facts.namespace,
        image=IMAGE,
        release=release,
        programs=tuple(programs),
        definitions=definitions,
        objects=objects,
        leases=leases,
        findings=tuple(found),
        values=extract_values(facts, tables) if installed else {},
        move=tuple(move_steps(release, facts.namespace, values_file, installed=installed)),
        back=tuple(return_steps(release, facts.namespace, installed=installed)),
    )
