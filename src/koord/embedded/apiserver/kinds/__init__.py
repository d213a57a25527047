"""The strategies of all built-in kinds that have one, by group and kind."""

from __future__ import annotations

from collections.abc import Mapping

from koord.embedded.apiserver.kinds import apps, batch
from koord.embedded.apiserver.kinds.pod import POD
from koord.embedded.apiserver.kinds.strategy import Strategy

STRATEGIES: Mapping[tuple[str, str], Strategy] = {
    ("", "Pod"): POD,
    ("", "PodTemplate"): apps.POD_TEMPLATE,
    ("", "ReplicationController"): apps.REPLICATION_CONTROLLER,
    ("apps", "ControllerRevision"): apps.CONTROLLER_REVISION,
    ("apps", "DaemonSet"): apps.DAEMON_SET,
    ("apps", "Deployment"): apps.DEPLOYMENT,
    ("apps", "ReplicaSet"): apps.REPLICA_SET,
    ("apps", "StatefulSet"): apps.STATEFUL_SET,
    ("batch", "CronJob"): batch.CRON_JOB,
    ("batch", "Job"): batch.JOB,
}


def strategy_for(group: str, kind: str) -> Strategy:
    """A kind without an entry takes what fits its schema."""
    return STRATEGIES.get((group, kind), Strategy())
