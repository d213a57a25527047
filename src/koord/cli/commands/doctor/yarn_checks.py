"""This module checks YARN clusters by what koord-yarn-operator says of them: it calls ResourceManagers from where it
matters, and with the user that counts.
"""

from __future__ import annotations

from koord.api.koordinator.yarn import OPERATOR_PROGRAM
from koord.api.model import Obj
from koord.cli.commands.doctor.facts import ClusterFacts, entries, field, labels_of, name_of, readable, text
from koord.cli.commands.doctor.finding import Diagnosis, Finding, name_list
from koord.cli.commands.doctor.installation import APP_LABEL
from koord.yarn.operator import DENIED, UNREACHABLE

YARN = "yarn"
_LOGS = "kubectl -n {namespace} logs deployment/koord-yarn-operator"

OPERATOR_SILENT = Diagnosis(
    kind=("yarn-operator-silent", YARN, "warning"),
    title="koord-yarn-operator is installed and does not answer.",
    why="What NodeManagers offer does not follow what nodes lend, and nodes do not say what YARN holds.",
    fix=_LOGS,
)
CLUSTER_NOT_REACHED = Diagnosis(
    kind=("yarn-cluster-not-reached", YARN, "error"),
    title="No active ResourceManager of a YARN cluster can be reached.",
    why="NodeManagers keep what they offer now, and nodes what they say that YARN holds.",
    fix="kubectl -n {namespace} get configmap yarn-config -o yaml",
)
ACCESS_DENIED = Diagnosis(
    kind=("yarn-access-denied", YARN, "error"),
    title="A ResourceManager refuses the operator's user: yarn.admin.acl does not hold it.",
    why="NodeManagers keep what they offer now, whatever their nodes lend.",
    fix="yarn rmadmin -refreshAdminAcls",
)
CLUSTER_FAILING = Diagnosis(
    kind=("yarn-cluster-failing", YARN, "warning"),
    title="Rounds of a YARN cluster fail for another reason.",
    why="Some of its NodeManagers keep what they offer now.",
    fix=_LOGS,
)
NODE_MANAGERS_LEFT_OUT = Diagnosis(
    kind=("yarn-node-managers-left-out", YARN, "warning"),
    title="Pods of NodeManagers take no part, each with its reason.",
    why="They offer what their own yarn-site.xml says, beside what Kubernetes gives to batch pods.",
    fix="kubectl get pods -A -l app.kubernetes.io/component=node-manager -o wide",
)
DIAGNOSES = (OPERATOR_SILENT, CLUSTER_NOT_REACHED, ACCESS_DENIED, CLUSTER_FAILING, NODE_MANAGERS_LEFT_OUT)


def has_yarn_operator(facts: ClusterFacts) -> bool:
    return any(
        OPERATOR_PROGRAM in (name_of(one), labels_of(one).get(APP_LABEL)) and field(one, "spec", "replicas") != 0
        for one in readable(facts.deployments)
    )


def check_yarn(facts: ClusterFacts) -> list[Finding]:
    """Return what is wrong; without an operator nothing is."""
    if facts.yarn is None:
        return []
    if isinstance(facts.yarn, str):
        return [OPERATOR_SILENT.found(facts.yarn, (OPERATOR_PROGRAM,), namespace=facts.namespace)]
    found: list[Finding] = []
    left_out = _texts(facts.yarn)
    for cluster in entries(facts.yarn, "clusters"):
        name, kind = text(cluster, "id"), text(cluster, "failure")
        left_out += _texts(cluster)
        if not text(cluster, "error"):
            continue
        diagnosis = {UNREACHABLE: CLUSTER_NOT_REACHED, DENIED: ACCESS_DENIED}.get(kind, CLUSTER_FAILING)
        found.append(
            diagnosis.found(f"YARN cluster {name}: {text(cluster, 'error')}", (name,), namespace=facts.namespace)
        )
    if left_out:
        found.append(NODE_MANAGERS_LEFT_OUT.found(name_list(left_out), left_out))
    return found


def _texts(obj: Obj) -> list[str]:
    listed = field(obj, "problems")
    return [one for one in listed if isinstance(one, str)] if isinstance(listed, list) else []
