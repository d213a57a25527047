"""This module checks that each program's service account has the rights that the program declares."""

from __future__ import annotations

from koord.cli.commands.doctor.facts import ClusterFacts, Unread, unread_findings
from koord.cli.commands.doctor.finding import Diagnosis, Finding, name_list

RBAC = "rbac"

RIGHTS_MISSING = Diagnosis(
    id="rights-missing",
    check=RBAC,
    severity="error",
    title="A program's service account lacks rights that the program declares.",
    why="Its lists, watches and writes are answered 403; what it would have done does not happen.",
    fix="koord manifests --namespace {namespace} --component {component} | kubectl apply --server-side "
    "--force-conflicts -f -",
)
DIAGNOSES = (RIGHTS_MISSING,)


def check_access(facts: ClusterFacts) -> list[Finding]:
    if isinstance(facts.access, Unread):
        return unread_findings(RBAC, facts.access)
    found = []
    for one in facts.access:
        if one.denied:
            what = f"{one.account} of {one.program} may not: {name_list(one.denied)} ({len(one.denied)} of {one.asked})"
            component = one.program.removeprefix("koord-")
            found.append(RIGHTS_MISSING.found(what, one.denied, namespace=facts.namespace, component=component))
    return found
