"""This module lists the checks, runs them on facts, and writes the table of the documentation."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection

import msgspec

from koord.cli.commands.doctor import (
    api_server_checks,
    configuration_checks,
    conflict_checks,
    gather,
    node_checks,
    program_checks,
    webhook_checks,
    yarn_checks,
)
from koord.cli.commands.doctor.facts import ClusterFacts, unread_findings
from koord.cli.commands.doctor.finding import SEVERITIES, Diagnosis, DoctorReport, Finding, SkippedCheck, printable
from koord.cli.commands.doctor.installation import (
    DESCHEDULER,
    KOORDLET,
    MANAGER,
    SCHEDULER,
    HelmRelease,
    installed_programs,
    own_release,
    own_workloads,
)

CheckFunction = Callable[[ClusterFacts], list[Finding]]


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """Check is one question to the facts. Without any program of `programs` it does not apply."""

    id: str
    title: str  # what it looks at, and what is said when nothing is wrong with that
    run: CheckFunction
    programs: tuple[str, ...] = ()
    needs_pods: bool = False  # programs in the API server's own process have no pods and no accounts


def _check_webhooks(facts: ClusterFacts) -> list[Finding]:
    return webhook_checks.check_webhooks(facts, MANAGER in {one.program for one in own_workloads(facts)})


_ELECTED = (MANAGER, SCHEDULER, DESCHEDULER)
_ALL = (*_ELECTED, KOORDLET)

CHECKS = (
    Check(
        id=api_server_checks.API_SERVER,
        title="The API server's version and API groups",
        run=api_server_checks.check_api_server,
    ),
    Check(
        id=api_server_checks.CRDS,
        title="CustomResourceDefinitions, their versions and storage versions",
        run=api_server_checks.check_crds,
    ),
    Check(
        id=program_checks.PROGRAM_PODS,
        title="The programs and their pods",
        run=program_checks.check_programs,
    ),
    Check(
        id=program_checks.LEASES,
        title="The leases of leaders",
        run=program_checks.check_leases,
        programs=_ELECTED,
        needs_pods=True,
    ),
    Check(
        id=program_checks.VERSIONS,
        title="The versions of the programs' images",
        run=program_checks.check_versions,
        programs=_ALL,
        needs_pods=True,
    ),
    Check(
        id=gather.RBAC,
        title="The rights of the programs' service accounts",
        run=gather.check_access,
        programs=_ALL,
        needs_pods=True,
    ),
    Check(id=webhook_checks.WEBHOOKS, title="Webhook configurations", run=_check_webhooks),
    Check(
        id=webhook_checks.WEBHOOK_SERVICE,
        title="The service behind the webhooks",
        run=webhook_checks.check_webhook_service,
        programs=(MANAGER,),
        needs_pods=True,
    ),
    Check(
        id=webhook_checks.WEBHOOK_CERTIFICATE,
        title="The serving certificate of webhooks and the CAs that API servers trust",
        run=webhook_checks.check_webhook_certificate,
        programs=(MANAGER,),
        needs_pods=True,
    ),
    Check(
        id=node_checks.NODE_METRICS,
        title="The age of each node's NodeMetric",
        run=node_checks.check_node_metrics,
        programs=(MANAGER, KOORDLET),
    ),
    Check(
        id=node_checks.KOORDLETS,
        title="The koordlet of each node",
        run=node_checks.check_koordlets,
        programs=(KOORDLET,),
    ),
    Check(
        id=node_checks.CAPABILITIES,
        title="What the kernel of each node supports",
        run=node_checks.check_capabilities,
        programs=(KOORDLET,),
    ),
    Check(
        id=node_checks.HOOKS,
        title="Runtime hooks and their connection to the container runtime",
        run=node_checks.check_hooks,
        programs=(KOORDLET,),
    ),
    Check(
        id=conflict_checks.CONFLICTS,
        title="Other software that does the same work",
        run=conflict_checks.check_conflicts,
    ),
    Check(
        id=configuration_checks.CONFIGURATION,
        title="The configurations of manager, scheduler and descheduler",
        run=configuration_checks.check_configuration,
    ),
    Check(
        id=yarn_checks.YARN,
        title="The YARN clusters of koord-yarn-operator, where it is installed",
        run=yarn_checks.check_yarn,
    ),
)
CHECK_IDS = tuple(one.id for one in CHECKS)

DIAGNOSES: tuple[Diagnosis, ...] = (
    *api_server_checks.DIAGNOSES,
    *program_checks.DIAGNOSES,
    *gather.DIAGNOSES,
    *webhook_checks.DIAGNOSES,
    *node_checks.DIAGNOSES,
    *conflict_checks.DIAGNOSES,
    *configuration_checks.DIAGNOSES,
    *yarn_checks.DIAGNOSES,
)


def run_checks(facts: ClusterFacts, only: Collection[str] = CHECK_IDS) -> DoctorReport:
    findings: list[Finding] = []
    skipped: list[SkippedCheck] = []
    release = own_release(facts)
    for check in CHECKS:
        if check.id not in only:
            continue
        unread = unread_findings(check.id, facts.deployments, facts.daemon_sets) if check.programs else []
        if unread:  # whether the programs are there cannot be told
            findings += unread
            continue
        if why := _reason_to_skip(check, facts):
            skipped.append(SkippedCheck(check=check.id, why=why))
            continue
        answers = [repaired_by_helm(one, release) for one in check.run(facts)]
        findings += answers
        if not answers:
            findings.append(Finding(id=check.id, check=check.id, severity="ok", what=check.title))
    findings.sort(key=lambda one: SEVERITIES.index(one.severity))
    return DoctorReport(
        koord_version=facts.koord_version,
        server_version=api_server_checks.server_version_text(facts),
        namespace=facts.namespace,
        at=facts.at.isoformat(timespec="seconds"),
        findings=tuple(findings),
        skipped=tuple(skipped),
    )


def repaired_by_helm(finding: Finding, release: HelmRelease | None) -> Finding:
    """Return the finding with Helm's command where the installation is a release: what kubectl applies over it would be
    undone by its next upgrade.
    """
    if release is None or not finding.fix.startswith("koord manifests "):
        return finding
    name, namespace = (shlex.quote(printable(one)) for one in (release.name, release.namespace))
    fix = f"helm upgrade {name} charts/koord --namespace {namespace} --reset-then-reuse-values --wait"
    if finding.id == program_checks.PROGRAM_MISSING.id:
        fix += f" --set {finding.objects[0].removeprefix('koord-')}.enabled=true"
    return msgspec.structs.replace(finding, fix=fix)


def _reason_to_skip(check: Check, facts: ClusterFacts) -> str:
    if not check.programs:
        return ""
    there = {one.program for one in own_workloads(facts)} if check.needs_pods else installed_programs(facts)
    if there & set(check.programs):
        return ""
    if check.needs_pods and facts.in_process & set(check.programs):
        return "the programs run in the API server's own process"
    if len(check.programs) > 1:
        return f"none of {', '.join(check.programs)} is installed in namespace {facts.namespace}"
    return f"{check.programs[0]} is not installed in namespace {facts.namespace}"


def documentation_table() -> str:
    """Return the Markdown of all checks and their findings, as docs/doctor.md has it."""
    lines = []
    for check in CHECKS:
        lines += [
            f"### {check.id}",
            "",
            f"{check.title}.",
            "",
            "| finding | severity | what it means | why it matters |",
        ]
        lines.append("|---|---|---|---|")
        for one in (one for one in DIAGNOSES if one.check == check.id):
            lines.append(f"| `{one.id}` | {one.severity} | {one.title} | {one.why} |")
        lines.append("")
    return "\n".join(lines)
