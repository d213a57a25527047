"""The flags and environment of koord-manager, converted to settings. It reads only what it is given."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import msgspec

from koord.api.config import gates
from koord.cli.daemons.flag_set import (
    BOOLEAN,
    DURATION,
    FLOAT,
    GATES,
    INTEGER,
    STRINGS,
    TEXT,
    Flag,
    FlagSet,
    FlagValues,
    parse_listen_address,
)
from koord.cli.daemons.lifecycle import LOGGING_FLAGS, OLD_KLOG_FLAGS
from koord.manager import program
from koord.manager.controllers.colocation_profile import ProfileControllerOptions
from koord.manager.feature_gates import MANAGER_GATES
from koord.manager.plugin import load_manager_plugins
from koord.manager.quota_topology_cache import EvaluatorOptions
from koord.manager.reconcile_loop import NAMESPACE, ManagerSettings
from koord.manager.webhook_server import cert_rotator
from koord.manager.webhook_server.handlers import WebhookOptions
from koord.manager.webhook_server.routes import WebhookAddress
from koord.manager.webhook_server.self_probe import WebhookServingSettings
from koord.manager.webhooks import admission
from koord.values import duration

SECOND = 1_000_000_000
MINUTE = 60 * SECOND
_ALL_NAMESPACES = "every controller is about the whole cluster"
_NO_PPROF = "there is no Go runtime to profile"
_WATCHED = "the ConfigMap is watched, so a change counts at once"

PROCESS_FLAGS = (
    Flag("kubeconfig", TEXT, "Path of a kubeconfig. Default: KUBECONFIG, then the pod's service account"),
    Flag("metrics-addr", TEXT, 'The address of the metrics; "0" serves none', ":8080"),
    Flag("health-probe-addr", TEXT, 'The address of healthz and readyz; "0" serves none', ":8000"),
    Flag("namespace", TEXT, "Limits the manager to one namespace", no_effect_reason=_ALL_NAMESPACES),
    Flag("enable-pprof", BOOLEAN, "Serve pprof", True, no_effect_reason=_NO_PPROF),
    Flag("pprof-addr", TEXT, "The address of pprof", ":8090", no_effect_reason=_NO_PPROF),
    Flag("sync-period", TEXT, "How often everything is looked at again; empty: only what changed"),
    Flag("rest-config-qps", FLOAT, "Requests a second to the API server", 30.0),
    Flag("rest-config-burst", INTEGER, "Requests to the API server at once", 50),
    Flag(
        "feature-gates",
        GATES,
        "Feature gates, as name=true,other=false. Options are:\n" + gates.describe_feature_gates(MANAGER_GATES),
    ),
)
LEADER_FLAGS = (
    Flag("enable-leader-election", BOOLEAN, "Run controllers only while holding the lease", True),
    Flag("leader-election-namespace", TEXT, "Where the lease is", NAMESPACE),
    Flag("leader-elect-resource-lock", TEXT, "Kind of the lock; there are only leases", "leases"),
)
CONTROLLER_FLAGS = (
    Flag(
        "controllers",
        STRINGS,
        f"Of {', '.join(sorted(program.CONTROLLER_NAMES))}; '*' all, '-name' not that one",
        ("*",),
    ),
    Flag("noderesource-plugins", STRINGS, "Plugins of noderesource; '*' all, '-name' not that one", ("*",)),
    Flag("slo-config-name", TEXT, "Name of the ConfigMap slo-controller-config", "slo-controller-config"),
    Flag("config-namespace", TEXT, "Where that ConfigMap is", NAMESPACE),
    Flag("colocation-profile-reconcile-by-default", BOOLEAN, "Apply all profiles to waiting pods, not only labelled"),
    Flag("colocation-profile-reconcile-interval", DURATION, "How often profiles are looked at", 30 * SECOND),
    Flag("colocation-profile-force-update-pod-duration", DURATION, "How long a pod is left alone", 5 * MINUTE),
    Flag("colocation-profile-expire-pod-cache-duration", DURATION, "How often that memory is swept", 10 * MINUTE),
    Flag("colocation-profile-update-pod-qps", FLOAT, "Pods that are changed in a second", 10.0),
    Flag("colocation-profile-update-pod-qps-burst", INTEGER, "Pods that are changed at once", 100),
)
WEBHOOK_FLAGS = (
    Flag("node-strategy-name-need-check", TEXT, "Whether node strategies need a name: true or false", "false"),
    Flag("pod-enhanced-validator-config-namespace", TEXT, "Where the rules for pod labels are", NAMESPACE),
    Flag("pod-enhanced-validator-config-name", TEXT, "ConfigMap of those rules", "pod-enhanced-validator-config"),
    Flag(
        "pod-enhanced-validator-reconcile-interval",
        DURATION,
        "How often they are read",
        5 * MINUTE,
        no_effect_reason=_WATCHED,
    ),
    Flag("quota-update-max-retries", INTEGER, "Tries to write a quota's admitted requests", 3),
    Flag("quota-update-retry-jitter", DURATION, "Longest pause between two of them"),
    Flag("quota-update-max-total-jitter", DURATION, "Longest pause of all together", SECOND),
    Flag(
        "quota-update-conflict-fresh-get",
        BOOLEAN,
        "Read the quota again after a conflict",
        no_effect_reason="it is always read again",
    ),
    Flag("binding-admission-user-name", STRINGS, "Users that may bind pods: parts of their names"),
    Flag("binding-admission-dry-run", BOOLEAN, "Only count what would be denied"),
    Flag("binding-admission-namespaces", STRINGS, "Namespaces in which bindings are looked at; '*' all"),
    Flag("binding-admission-exclude-namespaces", STRINGS, "Namespaces in which they are not", ("kube-system",)),
    Flag(
        "binding-admission-bypass-labels",
        STRINGS,
        "Labels of pods that anyone may bind",
        admission.BindingAdmissionSettings().bypass_labels,
    ),
    Flag("binding-admission-bypass-annotations", STRINGS, "Annotations of pods that anyone may bind"),
)
MANAGER_PROGRAM = "koord-manager"
MANAGER_FLAGS = FlagSet(
    MANAGER_PROGRAM,
    "koord-manager computes what nodes can lend to batch work, tells koordlets how to protect services,\n"
    "and admits pods, quotas and configuration.",
    {
        "Process": PROCESS_FLAGS,
        "Leader election": LEADER_FLAGS,
        "Controller": CONTROLLER_FLAGS,
        "Webhook": WEBHOOK_FLAGS,
        "Logging": (*LOGGING_FLAGS, *OLD_KLOG_FLAGS),
    },
)


class ManagerPlan(msgspec.Struct, frozen=True, kw_only=True):
    """ManagerPlan is everything that the command line and the environment decide."""

    hostname: str
    settings: ManagerSettings
    wishes: program.ManagerOptions
    serving: WebhookServingSettings | None  # None: WebhookFramework is off
    kubeconfig: str
    qps: float
    burst: int
    elects: bool
    lease_namespace: str
    metrics: tuple[str, int] | None
    health: tuple[str, int] | None


def plan_manager(values: FlagValues, environ: Mapping[str, str], hostname: str) -> ManagerPlan | str:
    """Return the plan, or the one line that says what is wrong."""
    switched = gates.parse_feature_gates(",".join(values["feature-gates"]), MANAGER_GATES)
    if isinstance(switched, list):
        return f"--feature-gates: {'; '.join(map(str, switched))}"
    strangers = program.unknown_controllers(values.strings("controllers"))
    if strangers:
        known = ", ".join(sorted(program.CONTROLLER_NAMES))
        return f"--controllers: no controller {', '.join(strangers)}; there are {known}"
    if values.text("leader-elect-resource-lock") != "leases":
        return f"--leader-elect-resource-lock {values.text('leader-elect-resource-lock')}: there are only leases"
    try:
        period = values.text("sync-period")
        sync_s = duration.parse(period) / 1e9 if period else 0.0
        names_needed = {"true": True, "false": False}[values.text("node-strategy-name-need-check").lower()]
    except duration.DurationError as wrong:
        return f"--sync-period: {wrong}"
    except KeyError as wrong:
        return f"--node-strategy-name-need-check: {wrong} is neither true nor false"
    addresses: dict[str, Any] = {}
    for flag in ("metrics-addr", "health-probe-addr"):
        addresses[flag] = parse_listen_address(values.text(flag))
        if isinstance(addresses[flag], str):
            return f"--{flag}: {addresses[flag]}"
    namespace = environ.get("POD_NAMESPACE") or NAMESPACE
    serving = _serving(environ, namespace, hostname) if switched["WebhookFramework"] else None
    if isinstance(serving, str):
        return serving
    return ManagerPlan(
        hostname=hostname,
        settings=ManagerSettings(
            namespace=namespace,
            config_namespace=values.text("config-namespace"),
            config_name=values.text("slo-config-name"),
            gates=switched,
            plugins=values.strings("noderesource-plugins"),
            sync_period_s=sync_s,
        ),
        wishes=program.ManagerOptions(
            controllers=values.strings("controllers"),
            profile_controller=_pace(values),
            evaluator=_effort(values),
            webhooks=_options(values, names_needed),
            plugins=load_manager_plugins(lambda group: entry_points(group=group)),
        ),
        serving=serving,
        kubeconfig=values.text("kubeconfig"),
        qps=values.ratio("rest-config-qps"),
        burst=values.number("rest-config-burst"),
        elects=values.switch("enable-leader-election"),
        lease_namespace=values.text("leader-election-namespace"),
        metrics=addresses["metrics-addr"],
        health=addresses["health-probe-addr"],
    )


def _serving(environ: Mapping[str, str], namespace: str, hostname: str) -> WebhookServingSettings | str:
    port = environ.get("WEBHOOK_PORT") or "9876"
    if not port.isdecimal() or not 0 < int(port) < 65536:
        return f"WEBHOOK_PORT={port} is not a port"
    writer = environ.get("WEBHOOK_CERT_WRITER", "")
    if writer not in ("", "fs", "secret"):
        return f"WEBHOOK_CERT_WRITER={writer} is neither fs nor secret"
    return WebhookServingSettings(
        address=WebhookAddress(
            namespace=namespace,
            service=environ.get("SERVICE_NAME") or cert_rotator.SERVICE_NAME,
            host=environ.get("WEBHOOK_HOST", ""),
            port=int(port),
        ),
        names=cert_rotator.WebhookObjectNames(
            secret=environ.get("SECRET_NAME") or cert_rotator.SECRET_NAME,
            mutating=environ.get("MUTATING_WEBHOOK_NAME") or cert_rotator.MUTATING_NAME,
            validating=environ.get("VALIDATING_WEBHOOK_NAME") or cert_rotator.VALIDATING_NAME,
        ),
        cert_dir=Path(environ.get("WEBHOOK_CERT_DIR") or "/tmp/koordinator-webhook-certs"),
        writer=writer,
        replica=environ.get("POD_NAME") or hostname,
        port=int(port),
    )


def _pace(values: FlagValues) -> ProfileControllerOptions:
    prefix = "colocation-profile-"
    return ProfileControllerOptions(
        all_profiles=values.switch(f"{prefix}reconcile-by-default"),
        resync_s=values.seconds(f"{prefix}reconcile-interval"),
        pod_cooldown_s=values.seconds(f"{prefix}force-update-pod-duration"),
        sweep_period_s=values.seconds(f"{prefix}expire-pod-cache-duration"),
        pods_per_second=values.ratio(f"{prefix}update-pod-qps"),
        burst=values.number(f"{prefix}update-pod-qps-burst"),
    )


def _effort(values: FlagValues) -> EvaluatorOptions:
    return EvaluatorOptions(
        max_retries=values.number("quota-update-max-retries"),
        jitter_s=values.seconds("quota-update-retry-jitter"),
        max_total_jitter_s=values.seconds("quota-update-max-total-jitter"),
    )


def _options(values: FlagValues, names_needed: bool) -> WebhookOptions:
    return WebhookOptions(
        require_strategy_names=names_needed,
        binding_admission=admission.BindingAdmissionSettings(
            users=values.strings("binding-admission-user-name"),
            namespaces=values.strings("binding-admission-namespaces"),
            exclude_namespaces=values.strings("binding-admission-exclude-namespaces"),
            bypass_labels=values.strings("binding-admission-bypass-labels"),
            bypass_annotations=values.strings("binding-admission-bypass-annotations"),
            dry_run=values.switch("binding-admission-dry-run"),
        ),
        rules_namespace=values.text("pod-enhanced-validator-config-namespace"),
        rules_name=values.text("pod-enhanced-validator-config-name"),
    )
