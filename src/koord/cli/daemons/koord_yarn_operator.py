"""This module is the koord-yarn-operator program: NodeManagers offer what their nodes lend, against any API server."""

from __future__ import annotations

import asyncio
import getpass
import logging
import os
import secrets
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from koord.api.koordinator.protocol import NAMESPACE
from koord.api.koordinator.yarn import HADOOP_CONF_DIR, OPERATOR_LEASE, OPERATOR_PROGRAM
from koord.cli.daemons.flag_set import (
    BOOLEAN,
    DURATION,
    FLOAT,
    INTEGER,
    STRINGS,
    TEXT,
    Flag,
    FlagSet,
    FlagValues,
    parse_listen_address,
)
from koord.cli.daemons.lifecycle import (
    LOGGING_FLAGS,
    OLD_KLOG_FLAGS,
    report_errors,
    run_event_loop,
    run_program,
    set_verbosity,
)
from koord.cli.daemons.startup import run_process
from koord.kube.config.connection import BadConfig, Connection
from koord.kube.config.loader import load_connection
from koord.kube.controller.process import ControllerProcess, ListenAddress, ProcessSettings, process_identity
from koord.kube.leader_election import LeaseConfig
from koord.telemetry import component_server
from koord.telemetry.clock import Clock, WallClock
from koord.telemetry.component_server import ServiceRoutes
from koord.telemetry.logs import Logs
from koord.telemetry.metrics import MetricRegistry
from koord.wire.hadoop_sasl import HadoopToken
from koord.wire.hadoop_yarn import decode_token_file
from koord.wire.protobuf import WireError
from koord.yarn.capacity import MAX_INT32
from koord.yarn.hadoop_config import CORE_SITE, YARN_SITE, BadHadoopConfig, YarnCluster, clusters_from_files
from koord.yarn.operator import CLUSTERS_PATH, OperatorSettings, YarnOperator
from koord.yarn.resource_manager import Caller, ResourceManagerClient

_LOG = logging.getLogger("koord.cli.daemons.koord_yarn_operator")  # by name: as a script this module is called __main__

SYNC_TIMEOUT_S = 60.0
TOKEN_FILE = "HADOOP_TOKEN_FILE_LOCATION"
USER = "HADOOP_USER_NAME"
CONTROLLER = "yarnresource"
_SECOND = 1_000_000_000
_NO_PPROF = "there is no Go runtime to profile"

PROCESS_FLAGS = (
    Flag("kubeconfig", TEXT, "Path of a kubeconfig. Default: KUBECONFIG, then the pod's service account"),
    Flag("metrics-addr", TEXT, 'The address of the metrics; "0" serves none', ":8080"),
    Flag("health-probe-addr", TEXT, 'The address of healthz and readyz; "0" serves none', ":8000"),
    Flag("namespace", TEXT, "Limits the operator to one namespace", no_effect_reason="nodes have no namespace"),
    Flag("enable-pprof", BOOLEAN, "Serve pprof", True, no_effect_reason=_NO_PPROF),
    Flag("pprof-addr", TEXT, "The address of pprof", ":8090", no_effect_reason=_NO_PPROF),
    Flag(
        "sync-period",
        TEXT,
        "How often everything is looked at again",
        no_effect_reason="every round looks at everything, see --sync-interval",
    ),
    Flag("controllers", STRINGS, f"Of {CONTROLLER}; '*' all, '-name' not that one", ("*",)),
    # One patch for each node of which YARN holds another amount than before: upstream's 30 a second would take half a
    # minute for 1,000 nodes. How many are under way at once is bounded by the operator's writers.
    Flag("rest-config-qps", FLOAT, "Requests a second to the API server", 500.0),
    Flag("rest-config-burst", INTEGER, "Requests to the API server at once", 1000),
)
LEADER_FLAGS = (
    Flag("enable-leader-election", BOOLEAN, "Work only while holding the lease", True),
    Flag("leader-election-namespace", TEXT, "Where the lease is", NAMESPACE),
)
YARN_FLAGS = (
    Flag(
        "hadoop-conf-dir",
        TEXT,
        "Folder with yarn-site.xml and core-site.xml of the default cluster and <id>.yarn-site.xml of others. "
        f"Default: {HADOOP_CONF_DIR}",
    ),
    Flag(
        "yarn-user",
        TEXT,
        f"User as whom ResourceManagers are called; yarn.admin.acl must hold it. Default: {USER}, then the user of "
        "the process",
    ),
    Flag("sync-interval", DURATION, "Time between two rounds of a YARN cluster", 5 * _SECOND),
    Flag(
        "over-commit-timeout",
        DURATION,
        "How long containers live on that a node has no room for after it lends less. 0: none, they are killed at "
        "once; negative: they are never killed. A ResourceManager does not forget an earlier time: do not change "
        "between negative and not",
        600 * _SECOND,
    ),
    Flag(
        "absence-grace",
        DURATION,
        "How long a NodeManager that its ResourceManager does not list still holds what it held",
        60 * _SECOND,
    ),
)
YARN_OPERATOR_FLAGS = FlagSet(
    OPERATOR_PROGRAM,
    "koord-yarn-operator lets the NodeManagers of Hadoop YARN offer what their nodes lend to batch work and pods\n"
    "leave of it, and writes to the nodes what YARN holds.",
    {
        "Process": PROCESS_FLAGS,
        "Leader election": LEADER_FLAGS,
        "YARN": YARN_FLAGS,
        "Logging": (*LOGGING_FLAGS, *OLD_KLOG_FLAGS),
    },
)


class YarnOperatorPlan(msgspec.Struct, frozen=True, kw_only=True):
    """YarnOperatorPlan is everything that the command line, the environment and Hadoop's files decide."""

    hostname: str
    clusters: tuple[YarnCluster, ...]
    user: str
    tokens: tuple[HadoopToken, ...]
    settings: OperatorSettings
    kubeconfig: str
    qps: float
    burst: int
    elects: bool
    lease_namespace: str
    metrics: tuple[str, int] | None
    health: tuple[str, int] | None


def main() -> None:
    """Run the console script."""
    sys.exit(run_program(YARN_OPERATOR_FLAGS, sys.argv[1:], run_operator))


def run_operator(values: FlagValues, logs: Logs) -> int:
    plan = plan_operator(values, os.environ, socket.gethostname())
    if isinstance(plan, str):
        return report_errors(OPERATOR_PROGRAM, [plan])
    for name, why in YARN_OPERATOR_FLAGS.set_without_effect(values):
        _LOG.info("--%s has no effect: %s", name, why)
    try:
        connection = load_connection(os.environ, WallClock(), path=plan.kubeconfig)
    except BadConfig as wrong:
        return report_errors(OPERATOR_PROGRAM, [str(wrong)])
    return run_event_loop(lambda stop: serve_operator(plan, connection, logs, stop))


async def serve_operator(
    plan: YarnOperatorPlan, connection: Connection, logs: Logs, stop: asyncio.Event, clock: Clock | None = None
) -> int:
    identity = process_identity(plan.hostname)
    lease = LeaseConfig(name=OPERATOR_LEASE, namespace=plan.lease_namespace, identity=identity) if plan.elects else None
    addresses = [ListenAddress(host=place[0], port=place[1]) for place in (plan.metrics,) if place is not None]
    if plan.health is not None:
        addresses.append(ListenAddress(host=plan.health[0], port=plan.health[1], is_health=True))
    registry = MetricRegistry()
    process = ControllerProcess(
        ProcessSettings(
            name=OPERATOR_PROGRAM,
            user_agent=OPERATOR_PROGRAM,
            connection=connection,
            qps=plan.qps,
            burst=plan.burst,
            identity=identity,
            lease=lease,
            addresses=tuple(addresses),
            registry=registry,
            sync_timeout_s=SYNC_TIMEOUT_S,
        ),
        clock or WallClock(),
    )
    caller = Caller(user=plan.user, random_bytes=secrets.token_bytes, tokens=plan.tokens)
    operator = YarnOperator(
        process.client,
        process.informers,
        process.clock,
        [ResourceManagerClient(cluster, caller) for cluster in plan.clusters],
        plan.settings,
        registry=registry,
    )
    process.server.metrics((registry,))
    routes = ServiceRoutes(
        process.server, unavailable=lambda: None if process.may_write() else "this replica does not lead"
    )
    routes.add("GET", CLUSTERS_PATH, lambda _: operator.describe())
    process.server.flag("v", lambda text: set_verbosity(logs, text))
    alive: dict[str, component_server.HealthCheck] = {"ping": component_server.ping}
    process.health_server.health("healthz", {**alive, **process.election_checks()})
    process.health_server.health("readyz", {**alive, "informer-sync": process.informers_synced})
    return await run_process(process, operator, stop)


def plan_operator(values: FlagValues, environ: Mapping[str, str], hostname: str) -> YarnOperatorPlan | str:
    """Return the plan, or the one line that says what is wrong."""
    wanted = values.strings("controllers")
    if any(word not in ("*", CONTROLLER) for word in wanted) or not wanted:
        return f"--controllers {','.join(wanted)}: there is only {CONTROLLER}, and it cannot be left out"
    folder = values.text("hadoop-conf-dir") or environ.get(HADOOP_CONF_DIR, "")
    if not folder:
        return f"--hadoop-conf-dir and {HADOOP_CONF_DIR} are not set"
    clusters = read_clusters(Path(folder))
    if isinstance(clusters, str):
        return clusters
    settings = _settings(values)
    if isinstance(settings, str):
        return settings
    tokens = read_tokens(environ.get(TOKEN_FILE, ""))
    if isinstance(tokens, str):
        return tokens
    user = values.text("yarn-user") or environ.get(USER, "") or _process_user()
    if not user:
        return f"the process has no user name: set --yarn-user or {USER}"
    addresses: dict[str, Any] = {}
    for flag in ("metrics-addr", "health-probe-addr"):
        addresses[flag] = parse_listen_address(values.text(flag))
        if isinstance(addresses[flag], str):
            return f"--{flag}: {addresses[flag]}"
    return YarnOperatorPlan(
        hostname=hostname,
        clusters=clusters,
        user=user,
        tokens=tokens,
        settings=settings,
        kubeconfig=values.text("kubeconfig"),
        qps=values.ratio("rest-config-qps"),
        burst=values.number("rest-config-burst"),
        elects=values.switch("enable-leader-election"),
        lease_namespace=values.text("leader-election-namespace"),
        metrics=addresses["metrics-addr"],
        health=addresses["health-probe-addr"],
    )


def read_clusters(folder: Path) -> tuple[YarnCluster, ...] | str:
    """Return the clusters of a folder, or what is wrong with its files."""
    try:
        paths = [path for path in folder.iterdir() if path.name.endswith((YARN_SITE, CORE_SITE))]
        files = {path.name: path.read_text() for path in paths}
    except (OSError, UnicodeDecodeError) as trouble:
        return f"{folder}: {trouble}"
    clusters = clusters_from_files(files)
    return f"{folder}/{clusters}" if isinstance(clusters, BadHadoopConfig) else clusters


def read_tokens(path: str) -> tuple[HadoopToken, ...] | str:
    """Return the tokens of Hadoop's token file, or what is wrong with it; without a file there are none."""
    if not path:
        return ()
    try:
        return decode_token_file(Path(path).read_bytes())
    except (OSError, WireError) as trouble:
        return f"{TOKEN_FILE}={path}: {trouble}"


def _settings(values: FlagValues) -> OperatorSettings | str:
    if values.number("sync-interval") <= 0:
        return "--sync-interval must be more than 0"
    if values.number("absence-grace") < 0:
        return "--absence-grace must not be negative"
    timeout_ms = max(values.number("over-commit-timeout") // 1_000_000, -1)
    if timeout_ms > MAX_INT32:
        return f"--over-commit-timeout must not be more than {MAX_INT32} ms"
    return OperatorSettings(
        interval_s=values.seconds("sync-interval"),
        over_commit_timeout_ms=timeout_ms,
        absence_grace_s=values.seconds("absence-grace"),
    )


def _process_user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user ID without a name, as in containers
        return ""


if __name__ == "__main__":
    main()
