"""The flags of koordlet's runtime hooks, and their conversion to settings."""

from __future__ import annotations

from koord.cli.daemons.flag_set import BOOLEAN, DURATION, FLOAT, INTEGER, STRINGS, TEXT, Flag, FlagValues
from koord.gpu.mps import CONTROL as MPS_CONTROL
from koord.host.filesystem import DAEMONSET_PATHS, HostPaths
from koord.koordlet.hooks.hook import HookStage
from koord.koordlet.nri.settings import FailurePolicy, HookServiceSettings, NriSettings
from koord.koordlet.pod_resources.settings import FOLDER as POD_RESOURCES_FOLDER
from koord.wire.runtime_hook import RuntimeHookStage

_SECOND = 1_000_000_000
_FAILURE_POLICIES = ("Ignore", "Fail")

RUNTIME_FLAGS = (
    Flag("default-runtime-type", TEXT, "The container runtime, which names containers' groups", "containerd"),
    Flag(
        "pod-resources-proxy-path",
        TEXT,
        "Folder of the socket that serves pod resources with devices, with the gate PodResourcesProxy",
        POD_RESOURCES_FOLDER,
    ),
    Flag("runtime-hooks-network", TEXT, "", "unix", no_effect_reason="the server is always on a Unix socket"),
    Flag(
        "runtime-hooks-reconcile-interval",
        DURATION,
        "Between two looks whether containers have what hooks decide",
        10 * _SECOND,
    ),
    Flag("runtime-hooks-disable-stages", STRINGS, "Stages at which no hook is called, such as PreCreateContainer"),
    Flag(
        "runtime-hooks-plugin-failure-policy",
        TEXT,
        "What a hook that fails means for the runtime: Ignore starts the container without it, Fail refuses it",
        "Ignore",
    ),
    Flag("disable-unset-cpu-quota", BOOLEAN, "Leave the quota of pods that have CPUs of their own"),
    Flag(
        "hami-core-library-directory-path",
        TEXT,
        "The library that shares GPUs, on the host",
        "/usr/local/vgpu/libvgpu.so",
    ),
    Flag("mps-control-command", TEXT, "The program that starts and asks MPS daemons, with its arguments", MPS_CONTROL),
    Flag("mps-directory", TEXT, "The folder of the MPS daemons' pipes, below the root of /var/run", "koordlet/mps"),
    Flag(
        "mps-shared-memory-path",
        TEXT,
        "What is /dev/shm to the MPS daemons, on the host. Default: the folder shm of --mps-directory, /dev/shm with "
        "agent_mode=hostMode",
    ),
)
NRI_FLAGS = (
    Flag("enable-nri-runtime-hook", BOOLEAN, "Let the runtime ask for hooks by NRI, once its socket exists", True),
    Flag("runtime-hooks-nri-socket-path", TEXT, "The runtime's NRI socket, below the root of /var/run", "nri/nri.sock"),
    Flag("runtime-hooks-nri-plugin-name", TEXT, "The name under which the agent registers", "koordlet_nri"),
    Flag("runtime-hooks-nri-plugin-index", TEXT, "Two digits by which the runtime orders its plugins", "00"),
    Flag("runtime-hooks-nri-connect-timeout", DURATION, "How long connecting may take", 6 * _SECOND),
    Flag("runtime-hooks-nri-backoff-duration", DURATION, "Pause after the first failed attempt", _SECOND),
    Flag("runtime-hooks-nri-backoff-cap", DURATION, "The longest pause", 60 * _SECOND),
    Flag("runtime-hooks-nri-backoff-steps", INTEGER, "How often the pause grows", 2**31 - 1),
    Flag("runtime-hooks-nri-backoff-factor", FLOAT, "By what it grows", 2.0),
)
HOOK_SERVER_FLAGS = (
    Flag(
        "runtime-hooks-server",
        TEXT,
        "Serve hooks to koord-runtime-proxy: on, off, or auto where the folder of its hook servers exists",
        "auto",
    ),
    Flag(
        "runtime-hooks-addr", TEXT, "The server's socket as the agent sees it", "/host-var-run-koordlet/koordlet.sock"
    ),
    Flag("runtime-hooks-host-endpoint", TEXT, "That socket as the proxy sees it", "/var/run/koordlet/koordlet.sock"),
    Flag(
        "runtime-hooks-config-path",
        TEXT,
        f"The folder of hook servers. Default: {DAEMONSET_PATHS.hooks}, {HostPaths().hooks} with agent_mode=hostMode",
    ),
    Flag(
        "runtime-hooks-failure-policy",
        TEXT,
        "What the proxy does when the server does not answer: Ignore or Fail",
        "Ignore",
    ),
)


def hook_service_settings(values: FlagValues, paths: HostPaths, state_dir: str) -> HookServiceSettings | str:
    """Return the settings of the ways in of hooks, or what is wrong with a flag."""
    policies: dict[str, FailurePolicy] = {}
    for name in ("runtime-hooks-failure-policy", "runtime-hooks-plugin-failure-policy"):
        policy = values.text(name)
        if policy not in _FAILURE_POLICIES:
            return f"--{name} {policy}: it is Ignore or Fail"
        policies[name] = "Fail" if policy == "Fail" else "Ignore"
    server = values.text("runtime-hooks-server")
    if server not in ("auto", "on", "off"):
        return f"--runtime-hooks-server {server}: it is auto, on or off"
    index = values.text("runtime-hooks-nri-plugin-index")
    if len(index) != 2 or not index.isdecimal():
        return f"--runtime-hooks-nri-plugin-index {index}: it has two digits"
    stages = frozenset(values["runtime-hooks-disable-stages"])
    unknown = sorted(stages - {stage.value for stage in (*HookStage, *RuntimeHookStage)})
    if unknown:
        return f"--runtime-hooks-disable-stages: there is no stage {unknown[0]}"
    plugin_policy = policies["runtime-hooks-plugin-failure-policy"]
    nri = NriSettings(
        socket_path=f"{paths.var_run}/{values.text('runtime-hooks-nri-socket-path').lstrip('/')}",
        plugin_name=values.text("runtime-hooks-nri-plugin-name"),
        plugin_index=index,
        connect_timeout_s=values.seconds("runtime-hooks-nri-connect-timeout"),
        backoff_s=values.seconds("runtime-hooks-nri-backoff-duration"),
        backoff_cap_s=values.seconds("runtime-hooks-nri-backoff-cap"),
        backoff_factor=values.ratio("runtime-hooks-nri-backoff-factor"),
        backoff_steps=values.number("runtime-hooks-nri-backoff-steps"),
        failure_policy=plugin_policy,
        lock_path=f"{state_dir}/nri.lock",
    )
    return HookServiceSettings(
        nri=nri if values.switch("enable-nri-runtime-hook") else None,
        server="on" if server == "on" else "off" if server == "off" else "auto",
        address=values.text("runtime-hooks-addr"),
        endpoint=values.text("runtime-hooks-host-endpoint"),
        registrations=(values.text("runtime-hooks-config-path") or paths.hooks).rstrip("/"),
        failure_policy=policies["runtime-hooks-failure-policy"],
        plugin_failure_policy=plugin_policy,
        disabled_stages=stages,
        runtime=values.text("default-runtime-type"),
    )
