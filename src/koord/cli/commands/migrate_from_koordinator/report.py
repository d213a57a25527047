"""This module puts together what is told of a move from Koordinator, with the commands of the move and of the way
back.
"""

from __future__ import annotations

import shlex

import msgspec

from koord.api.koordinator.custom_kinds import CUSTOM_KINDS
from koord.cli.commands.doctor.facts import Obj, Unread
from koord.cli.commands.doctor.finding import SEVERITIES, Finding, Severity
from koord.cli.commands.doctor.installation import images_of
from koord.cli.commands.doctor.program_checks import LEASE_NAMES
from koord.cli.commands.doctor.unstructured import field, name_of, text
from koord.cli.commands.migrate_from_koordinator import findings, inventory, program_arguments
from koord.cli.commands.migrate_from_koordinator.chart_values import extract_values, workloads_by_program
from koord.cli.commands.migrate_from_koordinator.facts import HelmRelease, KoordinatorFacts, helm_release
from koord.cli.manifests.manifests import IMAGE
from koord.manager.webhook_server.cert_rotator import SECRET_NAME

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
    definitions: tuple[inventory.InstalledDefinition, ...]
    objects: tuple[inventory.InstalledObject, ...]
    leases: tuple[inventory.LeaseHolder, ...]
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
    programs, found = [], findings.cluster_findings(facts)
    for program in findings.programs_in_order(facts):
        workload = workloads[program]
        words = program_arguments.command_line(program_arguments.container_of(workload, program))
        flags = program_arguments.judge_flags(program, words, tables[program])
        gates = program_arguments.judge_gates(program_arguments.gate_text(words), tables[program])
        found += findings.argument_findings(program, flags, gates)
        programs.append(
            ProgramMove(
                program=program,
                workload=f"{'DaemonSet' if program == 'koordlet' else 'Deployment'} {name_of(workload)}",
                images=images_of(field(workload, "spec", "template") or {}),
                flags=tuple(flags),
                gates=tuple(gates),
            )
        )
    objects, definitions = inventory.installed_objects(facts), inventory.installed_definitions(facts)
    leases = inventory.lease_holders(facts, LEASE_NAMES.items())
    found += findings.program_findings(facts, objects, leases)
    found += findings.definition_findings(definitions)
    found += findings.configuration_findings(facts)
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
