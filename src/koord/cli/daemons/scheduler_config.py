"""This module holds koord-scheduler's flags, all of kube-scheduler 1.35 and those that Koordinator adds, and makes its
configuration from them: a file or the shipped profile, flag overrides, and gates.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path

import msgspec

from koord.api.config import gates as gate_text
from koord.api.config.component import ClientConnectionConfiguration
from koord.api.config.field_error import FieldError
from koord.api.config.gates import KUBERNETES_GATES
from koord.api.config.scheduler import configuration
from koord.api.config.scheduler.configuration import KubeSchedulerConfiguration
from koord.api.koordinator import protocol
from koord.cli.daemons import flag_set as kind
from koord.cli.daemons import serving_flags
from koord.cli.daemons.flag_set import Flag, FlagSet, FlagValues
from koord.cli.daemons.lifecycle import LOGGING_FLAGS
from koord.cli.daemons.startup import LEADER_ELECTION_FLAGS, apply_election_flags
from koord.scheduler.configuration.completed_config import CompletedConfig
from koord.scheduler.configuration.config_file import load_configuration
from koord.scheduler.configuration.feature_gates import SCHEDULER_GATES, SYNC_BARRIER
from koord.scheduler.configuration.plugin_selection import (
    profiles_without_koordinator,
    settings_without_effect,
    without_unsupported_plugins,
)
from koord.scheduler.plugins.registry import ENTRY_POINT_GROUP, REGISTRY, load_plugins
from koord.scheduler.scheduler import CONTROLLER_FACTORIES
from koord.scheduler.workload_auditor import WorkloadAuditorSettings, metric_label_keys

SCHEDULER_PROGRAM = "koord-scheduler"
_SECOND = 1_000_000_000
_ABOUT = """
koord-scheduler assigns Pods to Nodes. It does what kube-scheduler does, and knows Koordinator's quality of service
classes, gangs, quotas, reservations and devices. Without --config it runs the profile that Koordinator ships, for pods
with schedulerName koord-scheduler.
"""
_NO_PROFILER = "there is no Go runtime to profile"
_JSON_ONLY = "the API server is spoken to in JSON"
_DUMPED_AT_ONCE = "a diagnosis is written before the next attempt"

_MISC = (
    Flag("config", kind.TEXT, "The path to the configuration file (KubeSchedulerConfiguration)."),
    Flag("master", kind.TEXT, "The address of the Kubernetes API server (overrides any value in kubeconfig)"),
    Flag("write-config-to", kind.TEXT, "If set, write the configuration values to this file and exit."),
    Flag("address", kind.ADDRESS, "The IP address on which to listen for the --port port.", "0.0.0.0"),
    Flag("port", kind.INTEGER, "The port for plain HTTP: health, metrics, services. 0 turns it off.", 10251),
)
_DEPRECATED = (
    Flag("contention-profiling", kind.BOOLEAN, "DEPRECATED: block profiling.", True, no_effect_reason=_NO_PROFILER),
    Flag("kube-api-burst", kind.INTEGER32, "DEPRECATED: burst of requests. Ignored with --config.", 100),
    Flag(
        "kube-api-content-type",
        kind.TEXT,
        "DEPRECATED: content type of requests.",
        "application/json",
        no_effect_reason=_JSON_ONLY,
    ),
    Flag("kube-api-qps", kind.FLOAT32, "DEPRECATED: requests per second. Ignored with --config.", 50.0),
    Flag("kubeconfig", kind.TEXT, "DEPRECATED: path to kubeconfig file. Ignored where --config names one."),
    Flag(
        "pod-max-in-unschedulable-pods-duration",
        kind.DURATION,
        "DEPRECATED: longest time that a pod stays unschedulable before it is tried again.",
        300 * _SECOND,
    ),
    Flag("profiling", kind.BOOLEAN, "DEPRECATED: profiling over the web.", True, no_effect_reason=_NO_PROFILER),
)
_GATES = (
    Flag(
        "emulated-version",
        kind.STRINGS,
        "Versions to emulate.",
        no_effect_reason="it behaves as version 1.35 does",
    ),
    Flag(
        "feature-gates",
        kind.GATES,
        "A set of key=value pairs that describe feature gates. Those of Kubernetes are accepted without effect."
        " Options are:\n" + gate_text.describe_feature_gates(SCHEDULER_GATES),
    ),
    Flag(
        "min-compatibility-version",
        kind.STRINGS,
        "Oldest version to work with.",
        no_effect_reason="1.32 and later work",
    ),
)
_KOORDINATOR = (
    Flag(
        "controller-plugins",
        kind.STRINGS,
        "Plugins whose controllers run: '*' all, 'name' on, '-name' off. They are: "
        + ", ".join(sorted(CONTROLLER_FACTORIES)),
        ("*",),
    ),
    Flag(
        "debug-scores",
        kind.INTEGER,
        "Log the scores of so many best nodes of each pod as a table.",
        short="s",
    ),
    Flag("debug-filters", kind.BOOLEAN, "Log why nodes are rejected, node by node.", short="f"),
    Flag(
        "debug-diagnosis",
        kind.BOOLEAN,
        "Log the diagnosis of each failed attempt as JSON.",
        short="d",
    ),
    Flag("debug-diagnosis-blocking", kind.BOOLEAN, "Dump it before going on.", no_effect_reason=_DUMPED_AT_ONCE),
    Flag("debug-diagnosis-queue-size", kind.INTEGER, "Dumps that may wait.", 1000, no_effect_reason=_DUMPED_AT_ONCE),
    Flag("debug-diagnosis-worker-count", kind.INTEGER, "Writers of dumps.", 10, no_effect_reason=_DUMPED_AT_ONCE),
    Flag(
        "enable-network-topology-manager",
        kind.BOOLEAN,
        "Write the status of the ClusterNetworkTopology where a profile has awareNetworkTopology.",
        True,
    ),
    Flag("scheduler-monitor-period", kind.DURATION, "How often late pods are looked for.", 10 * _SECOND),
    Flag("scheduling-timeout", kind.DURATION, "From when on an attempt is late.", 30 * _SECOND),
    Flag("scheduling-drop-unhandled-timeout", kind.DURATION, "When a pod never tried is forgotten.", 5 * _SECOND),
    Flag(
        "sync-barrier-pod-namespace",
        kind.TEXT,
        "Namespace of the pod at which a new leader waits (feature gate SyncBarrier).",
        protocol.SYNC_BARRIER_POD_NAMESPACE,
    ),
    Flag("sync-barrier-pod-name", kind.TEXT, "Name of that pod.", protocol.SYNC_BARRIER_POD_NAME),
    Flag("sync-hard-timeout", kind.DURATION, "After so long a new leader waits no more.", 60 * _SECOND),
    Flag("enable-workload-auditor", kind.BOOLEAN, "Record the way of each pod and gang, measure it, and warn."),
    Flag(
        "workload-auditor-metric-labels",
        kind.TEXT,
        "Keys of pod labels, with commas between, whose values become labels of the auditor's metrics.",
    ),
    Flag(
        "workload-auditor-victim-reschedule-duration",
        kind.DURATION,
        "Warn when a preemptor has no result so long after its victims are gone.",
        10 * _SECOND,
    ),
    Flag(
        "workload-auditor-victim-deletion-duration",
        kind.DURATION,
        "Warn when victims of a preemption take longer than this to go.",
        30 * _SECOND,
    ),
    Flag(
        "workload-auditor-victim-deleting-retries",
        kind.INTEGER,
        "Warn when a preemptor is tried more often than this while its victims are still there.",
        3,
    ),
    Flag(
        "workload-auditor-scheduling-event-interval",
        kind.DURATION,
        "Warn when nothing happens to a workload for longer than this.",
        300 * _SECOND,
    ),
)


def scheduler_flags() -> FlagSet:
    return FlagSet(
        SCHEDULER_PROGRAM,
        _ABOUT,
        {
            "Misc": _MISC,
            "Secure serving": serving_flags.SECURE_SERVING_FLAGS,
            "Authentication": serving_flags.AUTHENTICATION_FLAGS,
            "Authorization": serving_flags.AUTHORIZATION_FLAGS,
            "Deprecated": _DEPRECATED,
            "Leader election": LEADER_ELECTION_FLAGS,
            "Feature gate": _GATES,
            "Metrics": serving_flags.METRICS_FLAGS,
            "Koordinator": _KOORDINATOR,
            "Logs": LOGGING_FLAGS,
        },
    )


_SYNC_BARRIER_FLAGS = ("sync-barrier-pod-namespace", "sync-barrier-pod-name", "sync-hard-timeout")
_AUDITOR_FLAGS = (
    "workload-auditor-metric-labels",
    "workload-auditor-victim-reschedule-duration",
    "workload-auditor-victim-deletion-duration",
    "workload-auditor-victim-deleting-retries",
    "workload-auditor-scheduling-event-interval",
)
# Of kube-scheduler; a file decides these things itself, even by saying nothing.
_ONLY_WITHOUT_FILE = ("kube-api-burst", "kube-api-content-type", "kube-api-qps", "profiling", "contention-profiling")


class SchedulerConfigured(msgspec.Struct, frozen=True):
    assembly: CompletedConfig
    notes: tuple[str, ...]  # what the operator should read in the log
    auditor: WorkloadAuditorSettings | None = None


def scheduler_configuration(values: FlagValues) -> SchedulerConfigured | list[str]:
    """Return the configuration, or everything that is wrong with it, a line each with the field's name."""
    gates = _parse_gates(values)
    if isinstance(gates, list):
        return gates
    loaded = load_plugins(entry_points(group=ENTRY_POINT_GROUP))
    known = {"*", *CONTROLLER_FACTORIES, *(loaded.factories.keys() - REGISTRY.keys())}
    strangers = [e for e in values.strings("controller-plugins") if e.removeprefix("-") not in known]
    if strangers:
        names = ", ".join(sorted(known - {"*"}))
        return [f"--controller-plugins {name}: no such plugin has controllers; known are {names}" for name in strangers]
    factories = loaded.factories
    notes = [*gate_text.feature_gate_warnings(gates, SCHEDULER_GATES), *loaded.warnings]
    if not gates[SYNC_BARRIER]:
        idle = [f"--{name}" for name in _SYNC_BARRIER_FLAGS if values.is_set(name)]
        notes += [f"{flag} changes nothing without the feature gate {SYNC_BARRIER}" for flag in idle]
    auditor = workload_auditor_settings(values)
    if isinstance(auditor, str):
        return [auditor]
    if auditor is None:
        idle = [f"--{name}" for name in _AUDITOR_FLAGS if values.is_set(name)]
        notes += [f"{flag} changes nothing without --enable-workload-auditor" for flag in idle]
    path = values.text("config")
    if path:
        read = _read_config_file(path)
        if isinstance(read, list):
            return read
        config, ignored = _apply_kubeconfig_flag(read, values)
        notes += [f"--{name} is ignored: with --config the file decides" for name in ignored]
    else:
        config, missing = without_unsupported_plugins(
            _apply_deprecated_flags(configuration.configuration(), values), factories
        )
        if missing:
            notes.append(f"the shipped profile runs without plugins that are still to come: {', '.join(missing)}")
    elected = msgspec.structs.replace(config, leader_election=apply_election_flags(config.leader_election, values))
    made = CompletedConfig.complete(elected, factories, gates)
    if isinstance(made, list):
        return _error_lines(path, made)
    if made.unused_plugin_configs:
        notes.append(
            f"arguments without effect, as these plugins are not enabled: {', '.join(made.unused_plugin_configs)}"
        )
    notes += profiles_without_koordinator(elected)
    notes += settings_without_effect(elected)
    foreign = sorted(_kubernetes_gates_set(values))
    if foreign:
        notes.append(f"feature gates of Kubernetes that change nothing here: {', '.join(foreign)}")
    return SchedulerConfigured(made, tuple(notes), auditor)


def workload_auditor_settings(values: FlagValues) -> WorkloadAuditorSettings | str | None:
    """Return the settings of the workload auditor, None if it is off, or what is wrong with its flags."""
    if not values.switch("enable-workload-auditor"):
        return None
    keys = metric_label_keys(values.text("workload-auditor-metric-labels"))
    if isinstance(keys, str):
        return f"--workload-auditor-metric-labels: {keys}"
    return WorkloadAuditorSettings(
        metric_labels=keys,
        victim_reschedule_s=values.seconds("workload-auditor-victim-reschedule-duration"),
        victim_deletion_s=values.seconds("workload-auditor-victim-deletion-duration"),
        victim_deleting_retries=values.number("workload-auditor-victim-deleting-retries"),
        scheduling_event_interval_s=values.seconds("workload-auditor-scheduling-event-interval"),
    )


def _read_config_file(path: str) -> KubeSchedulerConfiguration | list[str]:
    try:
        text = Path(path).read_bytes()
    except OSError as trouble:
        return [f"--config: open {path}: {(trouble.strerror or str(trouble)).lower()}"]
    read = load_configuration(text)
    return _error_lines(path, read) if isinstance(read, list) else read


def _error_lines(path: str, errors: list[FieldError]) -> list[str]:
    where = f"--config {path}: " if path else ""
    return [f"{where}{error}" for error in errors]


def _apply_kubeconfig_flag(
    config: KubeSchedulerConfiguration, values: FlagValues
) -> tuple[KubeSchedulerConfiguration, list[str]]:
    """Return the configuration with --kubeconfig where the file names none, and the flags that are ignored."""
    ignored = [name for name in _ONLY_WITHOUT_FILE if values.is_set(name)]
    if not values.is_set("kubeconfig"):
        return config, ignored
    if config.client_connection.kubeconfig:
        return config, [*ignored, "kubeconfig"]
    connection = msgspec.structs.replace(config.client_connection, kubeconfig=values.text("kubeconfig"))
    return msgspec.structs.replace(config, client_connection=connection), ignored


def _apply_deprecated_flags(config: KubeSchedulerConfiguration, values: FlagValues) -> KubeSchedulerConfiguration:
    connection = ClientConnectionConfiguration(
        kubeconfig=values.text("kubeconfig"),
        qps=values.ratio("kube-api-qps"),
        burst=values.number("kube-api-burst"),
    )
    profiling = values.switch("profiling")
    contention = values.switch("contention-profiling")
    return msgspec.structs.replace(
        config,
        client_connection=connection,
        enable_profiling=profiling,
        enable_contention_profiling=contention,
    )


def _parse_gates(values: FlagValues) -> dict[str, bool] | list[str]:
    parsed = gate_text.parse_feature_gates(_joined_gate_text(values), SCHEDULER_GATES, KUBERNETES_GATES)
    return [f"--feature-gates: {error}" for error in parsed] if isinstance(parsed, list) else parsed


def _joined_gate_text(values: FlagValues) -> str:
    """Join the gates. Kubernetes names the component before a gate, as in kube:Name=true."""
    parts = [part.strip() for text in values.strings("feature-gates") for part in text.split(",")]
    return ",".join(part.removeprefix("kube:") for part in parts if part)


def _kubernetes_gates_set(values: FlagValues) -> set[str]:
    named = {part.partition("=")[0].strip() for part in _joined_gate_text(values).split(",") if part}
    return {name for name in named if name in KUBERNETES_GATES and name not in SCHEDULER_GATES}
