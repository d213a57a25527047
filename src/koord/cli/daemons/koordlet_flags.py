"""This module holds the flags and environment of koordlet, and converts them to settings. It reads only what
it is given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points

import msgspec

from koord.api.config import gates
from koord.cli.daemons.flag_set import (
    BOOLEAN,
    DURATION,
    FLOAT,
    GATES,
    INTEGER,
    TEXT,
    Flag,
    FlagSet,
    FlagValues,
    parse_listen_address,
)
from koord.cli.daemons.koordlet_eviction_flags import (
    ENDPOINT_FLAGS,
    EVICTION_FLAGS,
    cri_eviction_settings,
    yarn_copilot_settings,
)
from koord.cli.daemons.koordlet_hook_flags import HOOK_SERVER_FLAGS, NRI_FLAGS, RUNTIME_FLAGS, hook_service_settings
from koord.cli.daemons.lifecycle import LOGGING_FLAGS, OLD_KLOG_FLAGS
from koord.gpu.mps import MpsSettings
from koord.host.filesystem import DAEMONSET_PATHS, HostPaths, strip_trailing_slashes
from koord.koordlet.collect.collector import CollectSettings
from koord.koordlet.feature_gates import KOORDLET_GATES
from koord.koordlet.hooks.hook import HookSettings
from koord.koordlet.inputs.kubelet_client import PodSourceSettings
from koord.koordlet.plugin import load_koordlet_plugins
from koord.koordlet.pod_resources.settings import SOCKET, PodResourcesProxySettings
from koord.koordlet.reporters.builders.usage_models import UsageModelSettings
from koord.koordlet.reporters.interference_reporter import InterferenceReporterSettings
from koord.koordlet.reporters.node_metric_reporter import PredictorSettings
from koord.koordlet.reporters.object_reporter import DeviceReporterSettings, TopologyReporterSettings
from koord.koordlet.settings import PORT, AuditSettings, KoordletSettings
from koord.koordlet.strategies import cpu_burst, cpu_suppress, interference_view, runtime_hooks
from koord.koordlet.strategies.strategy import StrategySettings

PROGRAM = "koordlet"
SECOND = 1_000_000_000
MINUTE, HOUR = 60 * SECOND, 3600 * SECOND
_NO_PPROF = "there is no Go runtime to profile"
_IN_MEMORY = "samples are kept in memory, for as long as reports and decisions look back"
_NO_ENFORCING = "devices that vendors describe in files are always taken from there"
_NO_EXTENSIONS = "there are no extension plugins"


def _accepted_without_effect(name: str, kind: object, help: str, default: object, why: str) -> Flag:
    return Flag(name, kind, help, default, no_effect_reason=why)  # type: ignore[arg-type]


SERVER_FLAGS = (
    Flag("kubeconfig", TEXT, "Path of a kubeconfig. Default: KUBECONFIG, then the pod's service account"),
    Flag("addr", TEXT, 'The address of metrics, events and services; "0" serves none', f":{PORT}"),
    _accepted_without_effect("enable-pprof", BOOLEAN, "Serve pprof", None, _NO_PPROF),
    _accepted_without_effect("pprof-addr", TEXT, "The address of pprof", ":9317", _NO_PPROF),
    Flag("kube-api-qps", FLOAT, "Requests a second to the API server", 20.0),
    Flag("kube-api-burst", INTEGER, "Requests to the API server at once", 30),
    _accepted_without_effect(
        "configmap-name", TEXT, "Name of a ConfigMap", "koordlet-config", "flags and the NodeSLO say everything"
    ),
    _accepted_without_effect(
        "configmap-namespace", TEXT, "Where it is", "koordinator-system", "flags and the NodeSLO say everything"
    ),
    Flag(
        "feature-gates",
        GATES,
        "Feature gates of the agent and its hooks, as name=true,other=false. Options are:\n"
        + gates.describe_feature_gates(KOORDLET_GATES),
    ),
    _accepted_without_effect("qos-extension-plugins", GATES, "Extension plugins", None, _NO_EXTENSIONS),
    Flag("safe-mode", BOOLEAN, "Observe and report only: write no file, evict nobody"),
    Flag("kubepods-cgroup", TEXT, "The cgroup of all pods, such as kubelet/kubepods; empty: it is searched for"),
    Flag("state-dir", TEXT, "Folder of the journal of all writes. Default: koordlet in the var-run root"),
)
PATH_FLAGS = tuple(
    Flag(name, TEXT, help, f"{getattr(DAEMONSET_PATHS, field)}/")
    for name, field, help in (
        ("cgroup-root-dir", "cgroup", "Root of cgroups; /sys/fs/cgroup/ with agent_mode=hostMode"),
        ("proc-root-dir", "proc", "Root of /proc"),
        ("sys-root-dir", "sys", "Root of /sys; /sys/ with agent_mode=hostMode"),
        ("sys-fs-root-dir", "sys_fs", "Root of resctrl's parent; /sys/fs/ with agent_mode=hostMode"),
        ("var-run-root-dir", "var_run", "Root of /var/run; /var/run/ with agent_mode=hostMode"),
        ("run-root-dir", "run", "Root of /run; /run/ with agent_mode=hostMode"),
        ("var-lib-kubelet-dir", "kubelet", "The kubelet's folder"),
    )
)
_PATH_FIELD_BY_FLAG = {
    flag.name: field
    for flag, field in zip(PATH_FLAGS, ("cgroup", "proc", "sys", "sys_fs", "var_run", "run", "kubelet"))
}
COLLECTOR_FLAGS = (
    Flag("collect-res-used-interval", DURATION, "Between two samples; strategies run as often", SECOND),
    _accepted_without_effect(
        "collect-sys-metric-outdated-interval", DURATION, "", 10 * SECOND, "a sample counts for two intervals"
    ),
    Flag("collect-node-cpu-info-interval", DURATION, "Between two looks at CPUs and NUMA nodes", MINUTE),
    Flag("collect-node-storage-info-interval", DURATION, "Between two looks at disks", SECOND),
    Flag("cpi-collector-interval", DURATION, "Between two looks at cycles per instruction", MINUTE),
    Flag("collect-cpi-timewindow", DURATION, "How long one such look takes", 10 * SECOND),
    Flag("psi-collector-interval", DURATION, "Between two looks at pressure", 10 * SECOND),
    Flag("coldpage-collector-interval", DURATION, "Between two looks at cold memory", 5 * SECOND),
    Flag("resctrl-collector-interval", DURATION, "Between two looks at caches", 10 * SECOND),
    Flag("enable-pagecache-collector", BOOLEAN, "Collect memory with page cache as well"),
    Flag("enable-resctrl-collector", BOOLEAN, "Collect use of caches; needs the gate ResctrlCollector as well"),
)
SAMPLE_STORE_FLAGS = tuple(
    _accepted_without_effect(name, kind, help, default, _IN_MEMORY)
    for name, kind, help, default in (
        ("metric-gc-interval-seconds", INTEGER, "", 300),
        ("metric-expire-seconds", INTEGER, "", 1800),
        ("tsdb-path", TEXT, "", "/metric-data/"),
        ("tsdb-retention-duration", DURATION, "", 12 * HOUR),
        ("tsdb-enable-prometheus-metric", BOOLEAN, "", True),
        ("tsdb-stripe-size", INTEGER, "", 16384),
        ("tsdb-max-bytes", INTEGER, "", 104857600),
        ("tsdb-wal-segment-size", INTEGER, "", 1 << 20),
        ("tsdb-max-block-chunk-segment-size", INTEGER, "", 5 << 20),
        ("tsdb-min-block-duration", DURATION, "", 10 * MINUTE),
        ("tsdb-max-block-duration", DURATION, "", 10 * MINUTE),
        ("tsdb-head-chunks-write-buffer-size", INTEGER, "", 1 << 20),
    )
)
QOS_FLAGS = (
    Flag("reconcile-interval-seconds", INTEGER, "Between two rounds of strategies that have no flag of their own", 1),
    Flag("cpu-suppress-interval-seconds", INTEGER, "Between two rounds of CPU suppression", 1),
    Flag("cpu-evict-interval-seconds", INTEGER, "Between two looks whether to evict for CPU", 1),
    Flag("memory-evict-interval-seconds", INTEGER, "Between two looks whether to evict for memory", 1),
    Flag("memory-evict-cool-time-seconds", INTEGER, "Pause after an eviction for memory", 4),
    Flag("cpu-evict-cool-time-seconds", INTEGER, "Pause after an eviction for CPU", 20),
    *EVICTION_FLAGS,
    Flag("resource-force-update-seconds", INTEGER, "After this a file is looked at again, whatever is known", 60),
    Flag(
        "tell-interference",
        BOOLEAN,
        "Annotate pods that others disturb; needs the right to patch pods, and switches InterferenceDetection on",
    ),
    Flag("idle-stands-in", BOOLEAN, "Use cpu.idle for best-effort work on kernels without group identity", True),
)
STATE_FLAGS = (
    Flag(
        "pod-source", TEXT, "Where pods are learnt from: kubelet, apiserver, or auto for the first that answers", "auto"
    ),
    Flag("kubelet-preferred-address-type", TEXT, "Which address of the node its kubelet has", "InternalIP"),
    Flag("kubelet-sync-interval", DURATION, "Between two questions to the kubelet", 10 * SECOND),
    Flag("kubelet-sync-timeout", DURATION, "How long its answer may take", 3 * SECOND),
    Flag("kubelet-insecure-tls", BOOLEAN, "Ask the kubelet's read-only port over plain HTTP"),
    Flag("kubelet-read-only-port", INTEGER, "That port", 10255),
    Flag(
        "kubelet-certificate-authority", TEXT, "File of authorities for the kubelet's certificate; none: not verified"
    ),
    Flag("kubelet-token-file", TEXT, "File of the token for the kubelet. Default: as at the API server"),
    Flag("node-topology-sync-interval", DURATION, "Between two looks at the node's topology", 3 * SECOND),
    Flag(
        "xpu-device-infos-dir", TEXT, "Folder in which vendors describe devices", "/var/run/koordlet/xpu-device-infos/"
    ),
    Flag("disable-query-kubelet-config", BOOLEAN, "Do not ask the kubelet for its configuration"),
    Flag("enable-node-metric-report", BOOLEAN, "Report NodeMetric", True),
    _accepted_without_effect("report-interval", DURATION, "Deprecated", None, "the NodeMetric says how often"),
    _accepted_without_effect("enable-pod-taskids", BOOLEAN, "", None, "threads are read where they are needed"),
    _accepted_without_effect("xpu-enforce-collect-from-device-infos", BOOLEAN, "", None, _NO_ENFORCING),
)
AUDIT_FLAGS = (
    Flag("audit-log-dir", TEXT, "Folder of the audit log", "/var/log/koordlet"),
    Flag("audit-verbose", INTEGER, "Events of higher verbosity are not kept; 0 keeps all", 3),
    Flag("audit-max-disk-space-mb", INTEGER, "Most that the audit log takes", 16),
    Flag("audit-max-concurrent-readers", INTEGER, "Readers at the same time", 4),
    Flag("audit-max-events-limit", INTEGER, "Most events in one answer", 2048),
)
PREDICTION_FLAGS = (
    Flag("prediction-checkpoint-filepath", TEXT, "Folder of what was learnt", "/prediction-checkpoints"),
    Flag("prediction-cold-start-duration", DURATION, "How young a pod is not predicted", 24 * HOUR),
    Flag("prediction-safety-margin-percent", INTEGER, "Added to predictions", 10),
    Flag("prediction-memory-histogram-decay-halflife", DURATION, "Half-life of memory samples", 24 * HOUR),
    Flag("prediction-cpu-histogram-decay-halflife", DURATION, "Half-life of CPU samples", 12 * HOUR),
    Flag("prediction-training-interval", DURATION, "Between two trainings", MINUTE),
    Flag("prediction-model-expiration-duration", DURATION, "After this a model is forgotten", 30 * MINUTE),
    Flag("prediction-model-checkpoint-interval", DURATION, "Between two checkpoints of a model", 10 * MINUTE),
    Flag("prediction-model-checkpoint-max-per-step", INTEGER, "Most checkpoints at once", 12),
)
KOORDLET_FLAGS = FlagSet(
    PROGRAM,
    "koordlet measures a node and its pods, keeps batch work from hurting services, and reports what it sees.\n"
    "`koordlet restore` puts back every file that it ever changed.",
    {
        "Server": SERVER_FLAGS,
        "Path": PATH_FLAGS,
        "Collector": COLLECTOR_FLAGS,
        "Sample": SAMPLE_STORE_FLAGS,
        "QoS": QOS_FLAGS,
        "State": STATE_FLAGS,
        "Audit": AUDIT_FLAGS,
        "Prediction": PREDICTION_FLAGS,
        "Runtime": (*ENDPOINT_FLAGS, *RUNTIME_FLAGS),
        "NRI": NRI_FLAGS,
        "Hook server": HOOK_SERVER_FLAGS,
        "Logging": (*LOGGING_FLAGS, *OLD_KLOG_FLAGS),
    },
)


class KoordletPlan(msgspec.Struct, frozen=True, kw_only=True):
    """KoordletPlan is everything that the command line and the environment decide."""

    settings: KoordletSettings
    paths: HostPaths
    kubeconfig: str
    qps: float
    burst: int
    warnings: tuple[str, ...] = ()


def to_double_dash(argv: Sequence[str]) -> list[str]:
    """Convert Go's single-dash flags to two dashes: every chart of koordlet writes one."""
    words: list[str] = []
    for word in argv:
        name = word[1:].partition("=")[0].replace("_", "-")
        single = word.startswith("-") and not word.startswith("--")
        words.append(f"-{word}" if single and name in KOORDLET_FLAGS.flags else word)
    return words


def plan_koordlet(values: FlagValues, environ: Mapping[str, str]) -> KoordletPlan | str:
    """Return the plan, or the one line that says what is wrong."""
    switched = gates.parse_feature_gates(",".join(values["feature-gates"]), KOORDLET_GATES)
    if isinstance(switched, list):
        return f"--feature-gates: {'; '.join(map(str, switched))}"
    node = environ.get("NODE_NAME", "")
    if not node:
        return "NODE_NAME is not set: it names the Node object of this machine"
    address = parse_listen_address(values.text("addr"), PORT)
    if isinstance(address, str):
        return f"--addr: {address}"
    source = values.text("pod-source")
    if source not in ("auto", "kubelet", "apiserver"):
        return f"--pod-source {source}: it is auto, kubelet or apiserver"
    if values.seconds("collect-res-used-interval") < 0.1:
        return "--collect-res-used-interval: less than 100ms would cost more than it tells"
    on = frozenset(name for name, value in switched.items() if value)
    if values.switch("tell-interference"):
        on |= {interference_view.GATE}
    paths = paths_from_flags(values, environ)
    state_dir = values.text("state-dir") or f"{paths.var_run}/koordlet"
    hooks = hook_service_settings(values, paths, state_dir)
    if isinstance(hooks, str):
        return hooks
    cri_eviction = cri_eviction_settings(values, paths)
    if isinstance(cri_eviction, str):
        return cri_eviction
    yarn = yarn_copilot_settings(values, paths)
    if isinstance(yarn, str):
        return yarn
    plugins, plugin_warnings = load_koordlet_plugins(lambda group: entry_points(group=group))
    settings = KoordletSettings(
        node=node,
        gates=on,
        state_dir=state_dir,
        address=address,
        kubepods=values.text("kubepods-cgroup"),
        refresh_s=float(values.number("resource-force-update-seconds")),
        safe_mode=values.switch("safe-mode"),
        audit=_audit(values),
        collect=_collect(values, on),
        strategies=_strategies(values, paths),
        hooks=hooks,
        pods=_pods(values, source),
        prediction=_prediction(values),
        topology=TopologyReporterSettings(
            every_s=values.seconds("node-topology-sync-interval"),
            publish="NodeTopologyReport" in on,
            ask_kubelet=not values.switch("disable-query-kubelet-config"),
            huge_pages="HugePageReport" in on,
        ),
        mps=MpsSettings(
            folder=f"{paths.var_run}/{values.text('mps-directory').strip('/')}",
            command=tuple(values.text("mps-control-command").split()),
        ),
        cri_eviction=cri_eviction,
        yarn=yarn,
        reports_node_metric=values.switch("enable-node-metric-report"),
        interference=InterferenceReporterSettings(
            annotate=values.switch("tell-interference") and not values.switch("safe-mode")
        ),
        pod_resources=_pod_resources(values, paths) if "PodResourcesProxy" in on else None,
        plugins=plugins,
        devices=DeviceReporterSettings(
            every_s=values.seconds("node-topology-sync-interval"),
            accelerators="Accelerators" in on,
            rdma="RDMADevices" in on,
            folder=values.text("xpu-device-infos-dir").rstrip("/"),
        ),
    )
    return KoordletPlan(
        settings=settings,
        paths=paths,
        kubeconfig=values.text("kubeconfig"),
        qps=values.ratio("kube-api-qps"),
        burst=values.number("kube-api-burst"),
        warnings=(*gates.feature_gate_warnings(switched, KOORDLET_GATES), *plugin_warnings),
    )


def paths_from_flags(values: FlagValues, environ: Mapping[str, str]) -> HostPaths:
    """Return the paths of the flags; else those in the agent's pod, or the machine's own with agent_mode=hostMode."""
    usual = HostPaths() if environ.get("agent_mode") == "hostMode" else DAEMONSET_PATHS
    given = {field: values.text(name) for name, field in _PATH_FIELD_BY_FLAG.items() if values.is_set(name)}
    return strip_trailing_slashes(msgspec.structs.replace(usual, **given))


def _audit(values: FlagValues) -> AuditSettings:
    return AuditSettings(
        folder=values.text("audit-log-dir"),
        verbose=values.number("audit-verbose"),
        max_mb=values.number("audit-max-disk-space-mb"),
        readers=values.number("audit-max-concurrent-readers"),
        page_limit=values.number("audit-max-events-limit"),
    )


def _collect(values: FlagValues, on: frozenset[str]) -> CollectSettings:
    return CollectSettings(
        interval_s=values.seconds("collect-res-used-interval"),
        info_s=values.seconds("collect-node-cpu-info-interval"),
        psi_s=values.seconds("psi-collector-interval"),
        cpi_s=values.seconds("cpi-collector-interval"),
        cpi_window_s=values.seconds("collect-cpi-timewindow"),
        cold_pages_s=values.seconds("coldpage-collector-interval"),
        resctrl_s=values.seconds("resctrl-collector-interval"),
        storage_s=values.seconds("collect-node-storage-info-interval"),
        psi=not on.isdisjoint({"PSICollector", interference_view.GATE}),
        cpi=not on.isdisjoint({"CPICollector", interference_view.GATE}),
        cold_pages="ColdPageCollector" in on and not values.switch("safe-mode"),
        page_cache=values.switch("enable-pagecache-collector"),
        resctrl=values.switch("enable-resctrl-collector") and "ResctrlCollector" in on,
        storage="BlkIOReconcile" in on,
        gpu="Accelerators" in on,
    )


def _mps_shared_memory(values: FlagValues, paths: HostPaths) -> str:
    """Return the machine's folder that is /dev/shm to the daemons: in a pod, the one that is mounted there."""
    on_machine = paths.var_run == HostPaths().var_run
    return "/dev/shm" if on_machine else f"{HostPaths().var_run}/{values.text('mps-directory').strip('/')}/shm"


def _strategies(values: FlagValues, paths: HostPaths) -> StrategySettings:
    every = float(values.number("reconcile-interval-seconds"))
    names = (cpu_burst.OWNER, "ResctrlReconcile", "BlkioReconcile", "CgroupReconcile", "SystemConfigReconcile")
    return StrategySettings(
        collect_interval_s=values.seconds("collect-res-used-interval"),
        period_s={
            **dict.fromkeys(names, every),
            cpu_suppress.OWNER: float(values.number("cpu-suppress-interval-seconds")),
            "CPUEvict": float(values.number("cpu-evict-interval-seconds")),
            "memoryEvict": float(values.number("memory-evict-interval-seconds")),
            "GroupIdentity": values.seconds("runtime-hooks-reconcile-interval"),
            runtime_hooks.NAME: values.seconds("runtime-hooks-reconcile-interval"),
        },
        cpu_evict_cooldown_s=float(values.number("cpu-evict-cool-time-seconds")),
        memory_evict_cooldown_s=float(values.number("memory-evict-cool-time-seconds")),
        idle_stands_in=values.switch("idle-stands-in"),
        hooks=HookSettings(
            unset_cpu_quota=not values.switch("disable-unset-cpu-quota"),
            hami_library=values.text("hami-core-library-directory-path"),
            mps_folder=f"{HostPaths().var_run}/{values.text('mps-directory').strip('/')}",
            mps_shared_memory=values.text("mps-shared-memory-path") or _mps_shared_memory(values, paths),
        ),
    )


def _pods(values: FlagValues, source: str) -> PodSourceSettings:
    return PodSourceSettings(
        source="kubelet" if source == "kubelet" else "apiserver" if source == "apiserver" else "auto",
        address_type=values.text("kubelet-preferred-address-type"),
        plain_http=values.switch("kubelet-insecure-tls"),
        read_only_port=values.number("kubelet-read-only-port"),
        token_file=values.text("kubelet-token-file"),
        ca_file=values.text("kubelet-certificate-authority"),
        sync_s=values.seconds("kubelet-sync-interval"),
        timeout_s=values.seconds("kubelet-sync-timeout"),
    )


def _prediction(values: FlagValues) -> PredictorSettings:
    return PredictorSettings(
        folder=values.text("prediction-checkpoint-filepath"),
        train_s=values.seconds("prediction-training-interval"),
        cold_start_s=values.seconds("prediction-cold-start-duration"),
        margin_percent=values.number("prediction-safety-margin-percent"),
        models=UsageModelSettings(
            cpu_half_life_s=values.seconds("prediction-cpu-histogram-decay-halflife"),
            memory_half_life_s=values.seconds("prediction-memory-histogram-decay-halflife"),
            expire_s=values.seconds("prediction-model-expiration-duration"),
            checkpoint_s=values.seconds("prediction-model-checkpoint-interval"),
            checkpoints_per_step=values.number("prediction-model-checkpoint-max-per-step"),
        ),
    )


def _pod_resources(values: FlagValues, paths: HostPaths) -> PodResourcesProxySettings:
    folder = values.text("pod-resources-proxy-path").rstrip("/")
    return PodResourcesProxySettings(
        socket=f"{folder}/{SOCKET}", kubelet_socket=f"{paths.kubelet}/pod-resources/{SOCKET}"
    )
