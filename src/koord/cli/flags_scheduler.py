"""This module holds koord-scheduler's flags, all of kube-scheduler 1.35 and those that Koordinator adds, and
makes its configuration from them: a file or the shipped profile, flag overrides, and gates.
"""

from __future__ import annotations

from koord.api.config.gate_tables import SCHEDULER as GATES_TABLE
from koord.api.protocol import NAMESPACE, SCHEDULER
from koord.cli import flag_kind as kind
from koord.cli.flags import Flag, FlagSet
from koord.cli.flags_logging import LOGGING
from koord.cli.flags_serving import AUTHENTICATION, AUTHORIZATION, METRICS, SECURE_SERVING

PROGRAM = "koord-scheduler"
_SECOND = 1_000_000_000
_ABOUT = """
koord-scheduler assigns Pods to Nodes. It does what kube-scheduler does, and knows Koordinator's quality of service
classes, gangs, quotas, reservations and devices. Without --config it runs the profile that Koordinator ships, for pods
with schedulerName koord-scheduler.
"""
_NO_PROFILER = "there is no Go runtime to profile"
_JSON_ONLY = "the API server is spoken to in JSON"
_ATTEMPTS = "every attempt is recorded anyway; nothing more is printed"
_NO_AUDITOR = "this version has no workload auditor"
_NO_BARRIER = "this version has no sync barrier"

_MISC = (
    Flag("config", kind.TEXT, "The path to the configuration file (KubeSchedulerConfiguration)."),
    Flag("master", kind.TEXT, "The address of the Kubernetes API server (overrides any value in kubeconfig)"),
    Flag("write-config-to", kind.TEXT, "If set, write the configuration values to this file and exit."),
    Flag("address", kind.ADDRESS, "The IP address on which to listen for the --port port.", "0.0.0.0"),
    Flag("port", kind.INTEGER, "The port for plain HTTP: health, metrics, services. 0 turns it off.", 10251),
)
_DEPRECATED = (
    Flag("contention-profiling", kind.BOOLEAN, "DEPRECATED: block profiling.", True, unused=_NO_PROFILER),
    Flag("kube-api-burst", kind.INTEGER32, "DEPRECATED: burst of requests. Ignored with --config.", 100),
    Flag(
        "kube-api-content-type",
        kind.TEXT,
        "DEPRECATED: content type of requests.",
        "application/json",
        unused=_JSON_ONLY,
    ),
    Flag("kube-api-qps", kind.FLOAT32, "DEPRECATED: requests per second. Ignored with --config.", 50.0),
    Flag("kubeconfig", kind.TEXT, "DEPRECATED: path to kubeconfig file. Ignored with --config."),
    Flag(
        "pod-max-in-unschedulable-pods-duration",
        kind.DURATION,
        "DEPRECATED: longest time that a pod stays unschedulable before it is tried again.",
        300 * _SECOND,
    ),
    Flag("profiling", kind.BOOLEAN, "DEPRECATED: profiling over the web.", True, unused=_NO_PROFILER),
)
LEADER_ELECTION = (
    Flag("leader-elect", kind.BOOLEAN, "Work only while holding the lease. Needed for more than one replica.", True),
    Flag("leader-elect-lease-duration", kind.DURATION, "After so long without renewal others may lead.", 15 * _SECOND),
    Flag("leader-elect-renew-deadline", kind.DURATION, "After so long without renewal the leader stops.", 10 * _SECOND),
    Flag("leader-elect-resource-lock", kind.TEXT, "What is locked. Supported options are 'leases'.", "leases"),
    Flag("leader-elect-resource-name", kind.TEXT, "Name of the lease.", SCHEDULER),
    Flag("leader-elect-resource-namespace", kind.TEXT, "Namespace of the lease.", NAMESPACE),
    Flag("leader-elect-retry-period", kind.DURATION, "Time between attempts to get or renew it.", 2 * _SECOND),
)
_GATES = (
    Flag(
        "emulated-version",
        kind.STRINGS,
        "Versions to emulate.",
        unused="it behaves as version 1.35 does",
    ),
    Flag(
        "feature-gates",
        kind.GATES,
        "A set of key=value pairs that describe feature gates. Those of Kubernetes are accepted without effect."
        " Options are:\n"
        + "\n".join(
            f"{name}=true|false ({gate.stage.upper()} - default={str(gate.default).lower()})"
            for name, gate in sorted(GATES_TABLE.items())
        ),
    ),
    Flag("min-compatibility-version", kind.STRINGS, "Oldest version to work with.", unused="1.32 and later work"),
)
_KOORDINATOR = (
    Flag(
        "controller-plugins",
        kind.STRINGS,
        "Controllers to run: '*' all, 'name' on, '-name' off.",
        ("*",),
        unused="no plugin of this version has a controller",
    ),
    Flag("debug-scores", kind.INTEGER, "Print the best nodes of each pod.", short="s", unused=_ATTEMPTS),
    Flag("debug-filters", kind.BOOLEAN, "Print why nodes are refused.", short="f", unused=_ATTEMPTS),
    Flag("debug-diagnosis", kind.BOOLEAN, "Dump the diagnosis of failures.", short="d", unused=_ATTEMPTS),
    Flag("debug-diagnosis-blocking", kind.BOOLEAN, "Dump it before going on.", unused=_ATTEMPTS),
    Flag("debug-diagnosis-queue-size", kind.INTEGER, "Dumps that may wait.", 1000, unused=_ATTEMPTS),
    Flag("debug-diagnosis-worker-count", kind.INTEGER, "Writers of dumps.", 10, unused=_ATTEMPTS),
    Flag(
        "enable-network-topology-manager",
        kind.BOOLEAN,
        "Keep the tree of network topology.",
        unused="this version has no network topology manager",
    ),
    Flag("scheduler-monitor-period", kind.DURATION, "How often late pods are looked for.", 10 * _SECOND),
    Flag("scheduling-timeout", kind.DURATION, "From when on an attempt is late.", 30 * _SECOND),
    Flag("scheduling-drop-unhandled-timeout", kind.DURATION, "When a pod never tried is forgotten.", 5 * _SECOND),
    Flag("sync-barrier-pod-namespace", kind.TEXT, "Namespace of the barrier.", "kube-system", unused=_NO_BARRIER),
    Flag(
        "sync-barrier-pod-name", kind.TEXT, "Name of the barrier.", "koord-scheduler-sync-barrier", unused=_NO_BARRIER
    ),
    Flag("sync-hard-timeout", kind.DURATION, "Longest wait for the barrier.", 60 * _SECOND, unused=_NO_BARRIER),
    Flag("enable-workload-auditor", kind.BOOLEAN, "Audit workloads.", unused=_NO_AUDITOR),
    Flag("workload-auditor-metric-labels", kind.TEXT, "Its labels.", unused=_NO_AUDITOR),
    Flag("workload-auditor-victim-reschedule-duration", kind.DURATION, "Alert.", 10 * _SECOND, unused=_NO_AUDITOR),
    Flag("workload-auditor-victim-deletion-duration", kind.DURATION, "Alert.", 30 * _SECOND, unused=_NO_AUDITOR),
    Flag("workload-auditor-victim-deleting-retries", kind.INTEGER, "Alert.", 3, unused=_NO_AUDITOR),
    Flag("workload-auditor-scheduling-event-interval", kind.DURATION, "Alert.", 300 * _SECOND, unused=_NO_AUDITOR),
)


def scheduler_flags() -> FlagSet:
    return FlagSet(
        PROGRAM,
        _ABOUT,
        {
            "Misc": _MISC,
            "Secure serving": SECURE_SERVING,
            "Authentication": AUTHENTICATION,
            "Authorization": AUTHORIZATION,
            "Deprecated": _DEPRECATED,
            "Leader election": LEADER_ELECTION,
            "Feature gate": _GATES,
            "Metrics": METRICS,
            "Koordinator": _KOORDINATOR,
            "Logs": LOGGING,
        },
    )
