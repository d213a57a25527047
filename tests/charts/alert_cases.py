"""For each alert: series that make it fire and then end, in promtool's notation, with one sample a minute.

`0+1x30` is a counter that grows by one for 30 minutes, `5x20` a value that stays for 20.
"""

from __future__ import annotations

import msgspec

Labels = dict[str, str]


class AlertCase(msgspec.Struct, frozen=True, kw_only=True):
    """`labels` are those of each alert that fires at `fires_m`, without name and severity; at `ends_m` none is left."""

    series: dict[str, str]
    labels: tuple[Labels, ...]
    fires_m: int
    ends_m: int


def _failing(counter: str, bad: str, good: str, labels: Labels, fires_m: int = 30, ends_m: int = 70) -> AlertCase:
    """Return a case of a share: as many bad ones as good ones for 40 minutes, then good ones alone."""
    series = {f"{counter}{{{bad}}}": "0+1x40 40x60", f"{counter}{{{good}}}": "0+1x100"}
    return AlertCase(series=series, labels=(labels,), fires_m=fires_m, ends_m=ends_m)


def _growing(series: str, labels: Labels, fires_m: int = 20, ends_m: int = 60) -> AlertCase:
    """Return a case of a counter that grows for half an hour."""
    return AlertCase(series={series: "0+1x30 30x60"}, labels=(labels,), fires_m=fires_m, ends_m=ends_m)


def _no_leader(job: str) -> AlertCase:
    series = f'leader_election_master_status{{job="{job}",instance="%s",name="x"}}'
    return AlertCase(series={series % "a": "0x10 1x10", series % "b": "0x20"}, labels=({},), fires_m=5, ends_m=15)


def _slow(histogram: str, labels: str, bounds: tuple[str, str], expected: Labels) -> AlertCase:
    """Return a case of a histogram whose observations fall between the bounds for 40 minutes, and then none."""
    low, high = bounds
    return AlertCase(
        series={
            f'{histogram}_bucket{{{labels},le="{low}"}}': "0x100",
            f'{histogram}_bucket{{{labels},le="{high}"}}': "0+10x40 400x60",
            f'{histogram}_bucket{{{labels},le="+Inf"}}': "0+10x40 400x60",
        },
        labels=(expected,),
        fires_m=35,
        ends_m=70,
    )


_KOORDLET = {"job": "koordlet", "instance": "10.0.0.1:9316", "node": "n1"}
_SCHEDULER = 'job="koord-scheduler",instance="a"'
_QUOTA = 'name="team",resource="cpu",tree="",is_parent="false",parent="root"'
_POD = 'pod_uid="%s",pod_name="%s",pod_namespace="ns"'
_CONTAINER = f'node="n1",container_id="%s",container_name="main",{_POD}'
_CPI = f'koordlet_container_cpi{{{_CONTAINER},cpi_field="%s"}}'
_REQUEST = (
    'koordlet_container_resource_requests{node="n1",resource="kubernetes.io/batch-cpu",unit="integer",'
    'container_id="%s",container_name="main",' + _POD + "}"
)
_PSI = (
    'koordlet_pod_psi{node="n1",' + _POD + ',psi_resource_type="cpu",psi_precision="avg300",psi_degree="some",'
    'cpu_full_supported="true"}'
)
_HOOKS = "koordlet_runtime_hook_invoked_duration_milliseconds_count"
_RECONCILER = "koordlet_runtime_hook_reconciler_invoked_duration_milliseconds_count"
_DAY_S = 86_400

CASES: dict[str, AlertCase] = {
    "KoordletDown": AlertCase(
        series={'up{job="koordlet",instance="10.0.0.1:9316",node="n1"}': "0x20 1x20"},
        labels=(_KOORDLET,),
        fires_m=15,
        ends_m=25,
    ),
    "KoordletNodeMetricStale": AlertCase(
        series={
            'koord_manager_nodemetric_update_time_seconds{node="n1",instance="a"}': "0x20 1500x10",
            'koord_manager_nodemetric_update_time_seconds{node="n2",instance="a"}': "0+60x30",
        },
        labels=({"node": "n1"},),
        fires_m=15,
        ends_m=25,
    ),
    "KoordletRestarting": AlertCase(
        series={'koordlet_start_time{node="n1"}': "0x5 1x5 2x5 3x5 4x100", 'koordlet_start_time{node="n2"}': "7x100"},
        labels=({"node": "n1"},),
        fires_m=35,
        ends_m=110,
    ),
    "KoordletStrategyErrors": _growing(
        'koordlet_strategy_errors_total{node="n1",strategy="CPUSuppress"}', {"node": "n1", "strategy": "CPUSuppress"}
    ),
    "KoordletMPSDaemonDown": AlertCase(
        series={'koordlet_gpu_mps_daemon_up{node="n1",minor="0",uuid="GPU-0"}': "0x20 1x20"},
        labels=({"node": "n1", "minor": "0", "uuid": "GPU-0"},),
        fires_m=10,
        ends_m=25,
    ),
    "KoordletJournalUnwritable": AlertCase(
        series={'koordlet_journal_unwritable{node="n1"}': "1x10 0x20"}, labels=({"node": "n1"},), fires_m=8, ends_m=15
    ),
    "KoordletWritesFailing": _failing(
        "koordlet_resource_update_duration_milliseconds_count",
        'node="n1",type="cpu.shares",status="failed"',
        'node="n1",type="cpu.shares",status="success"',
        {"node": "n1", "type": "cpu.shares"},
    ),
    "BestEffortEvictionsHigh": AlertCase(
        series={'koordlet_pod_eviction{node="n1",reason="memory"}': "0+1x40 40x60"},
        labels=({"node": "n1"},),
        fires_m=30,
        ends_m=85,
    ),
    "BestEffortSuppressedToMinimum": AlertCase(
        series={
            'koordlet_be_suppress_cpu_cores{node="n1",type="cpuset"}': "2x40 8x30",
            'koordlet_be_suppress_cpu_cores{node="n2",type="cfsQuota"}': "0.02x40 4x30",
            'koordlet_be_suppress_cpu_cores{node="idle",type="cpuset"}': "2x70",
            'koordlet_be_suppress_be_used_cpu_cores{node="n1"}': "1.5x70",
            'koordlet_be_suppress_be_used_cpu_cores{node="n2"}': "0.02x70",
            'koordlet_be_suppress_be_used_cpu_cores{node="idle"}': "0x70",
        },
        labels=({"node": "n1", "type": "cpuset"}, {"node": "n2", "type": "cfsQuota"}),
        fires_m=35,
        ends_m=60,
    ),
    "BatchRequestsExceedAllocatable": AlertCase(
        series={
            _REQUEST % ("a", "a", "a"): "4000x60",
            _REQUEST % ("b", "b", "b"): "3000x60",
            'koordlet_node_resource_allocatable{node="n1",resource="kubernetes.io/batch-cpu",unit="integer"}': (
                "5000x30 9000x30"
            ),
        },
        labels=({"node": "n1", "resource": "kubernetes.io/batch-cpu"},),
        fires_m=20,
        ends_m=40,
    ),
    "ContainerCPIHigh": AlertCase(
        series={
            _CPI % ("c1", "u1", "web", "cycles"): "100x60 500x30 100x60",
            _CPI % ("c1", "u1", "web", "instructions"): "100x150",
            _CPI % ("c2", "u2", "batch", "cycles"): "100x60 500x30 100x60",
            _CPI % ("c2", "u2", "batch", "instructions"): "100x150",
            _REQUEST % ("c2", "u2", "batch"): "1000x150",
        },
        labels=(
            {
                "node": "n1",
                "container_id": "c1",
                "container_name": "main",
                "pod_uid": "u1",
                "pod_name": "web",
                "pod_namespace": "ns",
            },
        ),
        fires_m=80,
        ends_m=105,
    ),
    "PodCPUPressureHigh": AlertCase(
        series={
            _PSI % ("u1", "web"): "50x20 5x20",
            _PSI % ("u2", "batch"): "90x40",
            _REQUEST % ("c2", "u2", "batch"): "1000x40",
        },
        labels=(
            {
                "node": "n1",
                "pod_uid": "u1",
                "pod_name": "web",
                "pod_namespace": "ns",
                "psi_resource_type": "cpu",
                "psi_precision": "avg300",
                "psi_degree": "some",
                "cpu_full_supported": "true",
            },
        ),
        fires_m=18,
        ends_m=30,
    ),
    "RuntimeHookFailing": _growing(
        f'{_HOOKS}{{node="n1",hook="CPUSetAllocator",stage="PreStartContainer",status="failed"}}',
        {"node": "n1", "hook": "CPUSetAllocator", "stage": "PreStartContainer"},
    ),
    "RuntimeHookReconcilerFailing": _growing(
        f'{_RECONCILER}{{node="n1",level="allpods",resource_type="all",status="failed"}}', {"node": "n1"}
    ),
    "RuntimeProxyRefusesCalls": _growing(
        'koord_runtime_proxy_refused_calls_total{instance="a",stage="PreRunPodSandbox"}',
        {"instance": "a", "stage": "PreRunPodSandbox"},
    ),
    "RuntimeProxyHookServerFailing": _growing(
        'koord_runtime_proxy_hook_duration_seconds_count{instance="a",stage="PreRunPodSandbox",outcome="timeout"}',
        {"instance": "a", "stage": "PreRunPodSandbox", "outcome": "timeout"},
    ),
    "YarnCopilotWithoutNodeManager": _growing(
        'koord_yarn_copilot_node_manager_requests_total{instance="a",outcome="error"}', {"instance": "a"}
    ),
    "YarnCopilotCannotKill": _growing(
        'koord_yarn_copilot_container_kills_total{instance="a",outcome="failed"}', {"instance": "a"}
    ),
    "KoordSchedulerNoLeader": _no_leader("koord-scheduler"),
    "KoordManagerNoLeader": _no_leader("koord-manager"),
    "KoordDeschedulerNoLeader": _no_leader("koord-descheduler"),
    "KoordSchedulerQueueStuck": AlertCase(
        series={
            f'scheduler_pending_pods{{{_SCHEDULER},queue="active"}}': "3x70",
            'scheduler_pending_pods{job="koord-scheduler",instance="standby",queue="active"}': "3x70",
            f'leader_election_master_status{{{_SCHEDULER},name="x"}}': "1x70",
            'leader_election_master_status{job="koord-scheduler",instance="standby",name="x"}': "0x70",
            f'scheduler_schedule_attempts_total{{{_SCHEDULER},profile="p",result="scheduled"}}': "5x30 5+1x40",
        },
        labels=({"instance": "a"},),
        fires_m=25,
        ends_m=60,
    ),
    "KoordSchedulerPodsUnschedulable": AlertCase(
        series={f'scheduler_unschedulable_pods{{{_SCHEDULER},plugin="NodeResourcesFit",profile="p"}}': "2x90 0x20"},
        labels=({"plugin": "NodeResourcesFit"},),
        fires_m=70,
        ends_m=100,
    ),
    "KoordSchedulerAttemptErrors": _failing(
        "scheduler_schedule_attempts_total",
        f'{_SCHEDULER},profile="p",result="error"',
        f'{_SCHEDULER},profile="p",result="scheduled"',
        {},
    ),
    "KoordSchedulerSlow": _slow(
        "scheduler_scheduling_attempt_duration_seconds",
        f'{_SCHEDULER},profile="p",result="scheduled"',
        ("0.512", "2.048"),
        {},
    ),
    "ElasticQuotaOverUsed": AlertCase(
        series={
            f'scheduler_elastic_quota_status{{{_SCHEDULER},{_QUOTA},field="used"}}': "10x60 4x40",
            f'scheduler_elastic_quota_status{{{_SCHEDULER},{_QUOTA},field="runtime"}}': "5x100",
        },
        labels=(
            {
                "job": "koord-scheduler",
                "instance": "a",
                "name": "team",
                "resource": "cpu",
                "is_parent": "false",
                "parent": "root",
            },
        ),
        fires_m=45,
        ends_m=75,
    ),
    "KoordManagerWebhookUnreachable": AlertCase(
        series={'koord_manager_webhook_reachable{path="/mutate-pod",instance="a"}': "0x15 1x15"},
        labels=({"path": "/mutate-pod"},),
        fires_m=10,
        ends_m=20,
    ),
    "KoordManagerWebhookErrors": _growing(
        'koord_manager_webhook_failed_decisions_total{path="/mutate-pod",instance="a"}', {"path": "/mutate-pod"}
    ),
    "KoordManagerWebhookSlow": _slow(
        "koord_manager_webhook_webhook_duration_milliseconds",
        'webhook_type="mutate",object_type="pod",operation="CREATE",plugin_name="p",status="allowed"',
        ("524.288", "1048.576"),
        {"object_type": "pod"},
    ),
    "KoordManagerWebhookCertificateExpiring": AlertCase(
        series={
            'koord_manager_webhook_certificate_not_after_seconds{part="certificate",instance="a"}': (
                f"{10 * _DAY_S}x90 {3650 * _DAY_S}x60"
            )
        },
        labels=({"part": "certificate"},),
        fires_m=70,
        ends_m=100,
    ),
    "KoordManagerCertificateSyncFailing": AlertCase(
        series={'koord_manager_webhook_certificate_syncs_total{status="failed",instance="a"}': "0+1x40 40x60"},
        labels=({"instance": "a"},),
        fires_m=35,
        ends_m=85,
    ),
    "KoordManagerWebhookBypassed": AlertCase(
        series={'koord_manager_webhook_bypassed_pods{namespace="team"}': "2x30 0x20"},
        labels=({"namespace": "team"},),
        fires_m=20,
        ends_m=40,
    ),
    "KoordManagerConfigRejected": AlertCase(
        series={'koord_manager_slo_config_rejected{key="colocation-config"}': "1x20 0x20"},
        labels=({"key": "colocation-config"},),
        fires_m=15,
        ends_m=30,
    ),
    "KoordManagerReconcileFailing": _failing(
        "slo_controller_node_resource_reconcile_count",
        'status="failed",reason="updateNodeStatus"',
        'status="succeeded",reason=""',
        {},
    ),
    "KoordYarnClusterFailing": AlertCase(
        series={'koord_yarn_operator_cluster_up{instance="a",cluster="blue"}': "0x30 1x30"},
        labels=({"cluster": "blue"},),
        fires_m=20,
        ends_m=40,
    ),
    "KoordYarnNodeManagersLeftOut": AlertCase(
        series={'koord_yarn_operator_problems{instance="a",reason="node-id"}': "2x90 0x30"},
        labels=({"reason": "node-id"},),
        fires_m=70,
        ends_m=100,
    ),
    "KoordDeschedulerRoundsFailing": AlertCase(
        series={
            'koord_descheduler_rounds_total{result="error"}': "0+1x60 60x80",
            'koord_descheduler_rounds_total{result="success"}': "0x60 0+1x80",
        },
        labels=({},),
        fires_m=40,
        ends_m=110,
    ),
    "KoordDeschedulerEvictionsFailing": AlertCase(
        series={
            'descheduler_pods_evicted{strategy="LowNodeLoad",result="error",namespace="a",node="n1"}': "0+1x80 80x80",
            'descheduler_pods_evicted{strategy="LowNodeLoad",result="success",namespace="a",node="n1"}': "0x80 0+1x80",
        },
        labels=({"strategy": "LowNodeLoad"},),
        fires_m=60,
        ends_m=130,
    ),
    "KoordProgramMemoryHigh": AlertCase(
        series={
            'process_resident_memory_bytes{job="koordlet",instance="10.0.0.1:9316",node="n1"}': "260000000x30 1e8x20",
            f"process_resident_memory_bytes{{{_SCHEDULER}}}": "1050000000x30 5e8x20",
            'process_resident_memory_bytes{job="koord-manager",instance="b"}': "260000000x50",
        },
        labels=(_KOORDLET, {"job": "koord-scheduler", "instance": "a"}),
        fires_m=20,
        ends_m=40,
    ),
    "KoordProgramCPUHigh": AlertCase(
        series={
            'process_cpu_seconds_total{job="koordlet",instance="10.0.0.1:9316",node="n1"}': "0+30x60 1800x40",
            f"process_cpu_seconds_total{{{_SCHEDULER}}}": "0+60x60 3600x40",
            'process_cpu_seconds_total{job="koord-manager",instance="b"}': "0+30x100",
        },
        labels=(_KOORDLET, {"job": "koord-scheduler", "instance": "a"}),
        fires_m=50,
        ends_m=85,
    ),
    "KoordProgramFilesNearLimit": AlertCase(
        series={
            f"process_open_fds{{{_SCHEDULER}}}": "900x30 100x30",
            f"process_max_fds{{{_SCHEDULER}}}": "1000x60",
        },
        labels=({"job": "koord-scheduler", "instance": "a"},),
        fires_m=20,
        ends_m=40,
    ),
    "KoordAPIRequestsFailing": _failing(
        "rest_client_requests_total",
        f'{_SCHEDULER},code="503",method="GET",host="api"',
        f'{_SCHEDULER},code="200",method="GET",host="api"',
        {"job": "koord-scheduler"},
    ),
}
