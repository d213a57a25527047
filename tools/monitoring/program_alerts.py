"""Alerts about what every program needs: memory, CPU, files and the API server."""

from __future__ import annotations

from koord.cli.manifests import daemonsets, deployments
from koord.values.quantity import Quantity
from tools.monitoring.alert import Alert, AlertGroup

_CONTROL_PLANE = 'job=~"koord-(manager|scheduler|descheduler)"'
_KOORDLET = 'job="koordlet"'
_NEAR_LIMIT = 0.9


def _near(resource: str) -> tuple[float, float]:
    """Return nine tenths of the limit that the chart gives programs of the control plane, and koordlet."""
    limits = (deployments.RESOURCES["limits"][resource], daemonsets.KOORDLET_RESOURCES["limits"][resource])
    control_plane, agent = (Quantity.parse(limit).milli_value() / 1000 * _NEAR_LIMIT for limit in limits)
    return control_plane, agent


def _pressure() -> tuple[Alert, Alert]:
    bytes_, agent_bytes = _near("memory")
    cores, agent_cores = _near("cpu")
    return (
        Alert(
            name="KoordProgramMemoryHigh",
            severity="warning",
            expression=f"process_resident_memory_bytes{{{_CONTROL_PLANE}}} > {bytes_:.0f}"
            f" or process_resident_memory_bytes{{{_KOORDLET}}} > {agent_bytes:.0f}",
            lasts="15m",
            summary="{{ $labels.job }} at {{ $labels.instance }} uses {{ $value | humanize1024 }}B",
            description="It uses more than nine tenths of the memory limit of the chart's default values.",
            meaning="The kernel will kill the program when it reaches its limit. Large clusters need more than the"
            " default.",
            steps=(
                "Raise `resources.limits.memory` of the program in the values, and this threshold with it.",
                "`koord support-bundle` where memory grows though the cluster does not.",
            ),
        ),
        Alert(
            name="KoordProgramCPUHigh",
            severity="warning",
            expression=f"rate(process_cpu_seconds_total{{{_CONTROL_PLANE}}}[10m]) > {cores:g}"
            f" or rate(process_cpu_seconds_total{{{_KOORDLET}}}[10m]) > {agent_cores:g}",
            lasts="30m",
            summary="{{ $labels.job }} at {{ $labels.instance }} uses {{ $value | humanize }} cores",
            description="It uses more than nine tenths of the CPU limit of the chart's default values.",
            meaning="The program is throttled: decisions come late.",
            steps=("Raise `resources.limits.cpu` of the program in the values, and this threshold with it.",),
        ),
    )


PROGRAMS = AlertGroup(
    name="koord-programs",
    title="Every program",
    alerts=(
        *_pressure(),
        Alert(
            name="KoordProgramFilesNearLimit",
            severity="warning",
            expression=f"process_open_fds{{{_CONTROL_PLANE}}} / process_max_fds{{{_CONTROL_PLANE}}} > 0.8"
            f" or process_open_fds{{{_KOORDLET}}} / process_max_fds{{{_KOORDLET}}} > 0.8",
            lasts="15m",
            summary="{{ $labels.job }} at {{ $labels.instance }} has {{ $value | humanizePercentage }} of its"
            " files open",
            description="More than four fifths of the file descriptors that the process may open are open.",
            meaning="When all are used, connections and kernel files cannot be opened.",
            steps=("`koord support-bundle`, then delete the pod.",),
        ),
        Alert(
            name="KoordAPIRequestsFailing",
            severity="warning",
            expression=f'sum by (job) (rate(rest_client_requests_total{{{_CONTROL_PLANE},code=~"5..|<error>"}}[10m]))'
            f" / sum by (job) (rate(rest_client_requests_total{{{_CONTROL_PLANE}}}[10m])) > 0.1",
            lasts="15m",
            summary="{{ $value | humanizePercentage }} of the requests of {{ $labels.job }} fail",
            description="Requests of {{ $labels.job }} to the API server end with a server error or without an answer.",
            meaning="The API server is overloaded or not reachable. The programs try again with growing pauses.",
            steps=(
                "`koord doctor --only api-server` asks the API server.",
                "Look at the API server's own alerts first.",
            ),
        ),
    ),
)
