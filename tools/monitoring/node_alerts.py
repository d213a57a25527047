"""Alerts about nodes: koordlet, what it does to pods, koord-runtime-proxy and koord-yarn-copilot."""

from __future__ import annotations

from koord.api.koordinator.resource_name import BATCH_CPU
from koord.koordlet.strategies.cpu_suppress import MIN_CPUS, MIN_QUOTA_US
from tools.monitoring.alert import Alert, AlertGroup, Recording

_PERIOD_US = 100_000
_BATCH_CONTAINERS = f'koordlet_container_resource_requests{{resource="{BATCH_CPU}"}}'
_CPI = "koordlet:container_cpi:ratio"
_HOOKS = "koordlet_runtime_hook_invoked_duration_milliseconds_count"
_RECONCILER = "koordlet_runtime_hook_reconciler_invoked_duration_milliseconds_count"
_WRITES = "koordlet_resource_update_duration_milliseconds_count"
_PRESSURE = 'koordlet_pod_psi{psi_resource_type="cpu",psi_precision="avg300",psi_degree="some"}'

KOORDLET = AlertGroup(
    name="koord-koordlet",
    title="koordlet",
    alerts=(
        Alert(
            name="KoordletDown",
            severity="critical",
            expression='up{job="koordlet"} == 0',
            lasts="10m",
            summary="koordlet on {{ $labels.node }} cannot be scraped",
            description="Prometheus has had no answer of koordlet at {{ $labels.instance }} for 10 minutes.",
            meaning="koordlet does not run on the node, hangs, or its port is closed. Values that it wrote to"
            " cgroups stay"
            " as they are: BE pods keep the CPUs of that moment, and nobody evicts for memory.",
            steps=(
                "`kubectl -n koordinator-system get pods -l koord-app=koordlet -o wide` shows the pod of the node.",
                "`koord doctor --node NODE` says what is wrong with it.",
                "`koord support-bundle` keeps the log of the container before the last restart.",
            ),
        ),
        Alert(
            name="KoordletNodeMetricStale",
            severity="warning",
            expression="time() - max by (node) (koord_manager_nodemetric_update_time_seconds) > 300",
            lasts="5m",
            summary="{{ $labels.node }} has not reported its usage for {{ $value | humanizeDuration }}",
            description="The NodeMetric of {{ $labels.node }} is older than 5 minutes. After 15 minutes"
            " (degradeTimeMinutes) the"
            " node lends nothing to batch and mid pods.",
            meaning="koordlet does not run, measures nothing, or its writes are refused. koord-scheduler takes the"
            " node's load"
            " for unknown.",
            steps=(
                "`koord doctor --node NODE` compares NodeMetric, koordlet and the kubelet.",
                "`koord explain node NODE` shows what the node lends and from which report.",
                "Look for refused requests in koordlet's log: it needs the right to update nodemetrics/status.",
            ),
        ),
        Alert(
            name="KoordletRestarting",
            severity="warning",
            expression="changes(koordlet_start_time[1h]) > 3",
            lasts="5m",
            summary="koordlet on {{ $labels.node }} restarted {{ $value }} times in an hour",
            description="koordlet on {{ $labels.node }} starts again and again.",
            meaning="It is killed (memory limit, liveness probe) or ends by itself. What it wrote is kept in its"
            " journal over"
            " restarts.",
            steps=(
                "`kubectl -n koordinator-system describe pod POD` names the reason of the last end; OOMKilled: raise"
                " `koordlet.resources`.",
                "`koord support-bundle` holds the log of the container before.",
            ),
        ),
        Alert(
            name="KoordletStrategyErrors",
            severity="warning",
            expression="sum by (node, strategy) (increase(koordlet_strategy_errors_total[15m])) > 0",
            lasts="5m",
            summary="strategy {{ $labels.strategy }} fails on {{ $labels.node }}",
            description="An unexpected error ended a run of {{ $labels.strategy }}; the other strategies go on.",
            meaning="A defect of koordlet, or a kernel that answers as nobody expected. The strategy keeps what it"
            " wrote last.",
            steps=(
                "koordlet's log has a traceback for each error.",
                "`koord node capabilities NODE` shows which kernel files work on the node.",
                "`koord support-bundle` is what a report of the problem needs.",
            ),
        ),
        Alert(
            name="KoordletJournalUnwritable",
            severity="critical",
            expression="max by (node) (koordlet_journal_unwritable) == 1",
            lasts="5m",
            summary="koordlet on {{ $labels.node }} writes no kernel files",
            description="The journal of original values on {{ $labels.node }} cannot be written, so that nothing"
            " new is written.",
            meaning="Without the journal a value could not be put back. The disk is full or read-only, or the folder"
            " belongs to someone else.",
            steps=(
                "Look at `/var/run/koordlet` on the node, or the folder of `--state-dir` (`df`, `mount`).",
                "`koord doctor --node NODE` names the folder.",
            ),
        ),
        Alert(
            name="KoordletWritesFailing",
            severity="warning",
            expression=f'sum by (node, type) (rate({_WRITES}{{status="failed"}}[10m]))'
            f" / sum by (node, type) (rate({_WRITES}[10m])) > 0.05",
            lasts="15m",
            summary="{{ $value | humanizePercentage }} of writes to {{ $labels.type }} fail on {{ $labels.node }}",
            description="The kernel refuses writes of {{ $labels.type }} on {{ $labels.node }}.",
            meaning="Another program writes the same files, or the kernel lacks the feature.",
            steps=(
                "`koord node capabilities NODE` shows which files work.",
                "`koord explain container NAMESPACE/POD/CONTAINER` shows each value: who decided it, what the"
                " kernel holds.",
            ),
        ),
        Alert(
            name="KoordletMPSDaemonDown",
            severity="warning",
            expression="koordlet_gpu_mps_daemon_up == 0",
            lasts="5m",
            summary="GPU {{ $labels.minor }} of {{ $labels.node }} has no working MPS daemon",
            description="The MPS daemon of GPU {{ $labels.minor }} on {{ $labels.node }} does not answer, and could"
            " not be started again.",
            meaning="Pods with a share of that card by MPS start without it until the daemon works. Other cards are"
            " not affected.",
            steps=(
                "`koord top gpus --node NODE` says what the daemon's program answered.",
                "Look at `/var/run/koordlet/mps/MINOR/log` on the node, and whether `nvidia-smi` lists the card.",
            ),
        ),
    ),
)

PODS_ON_NODES = AlertGroup(
    name="koord-pods-on-nodes",
    title="Pods on nodes",
    recordings=(
        Recording(
            name=_CPI,
            expression='koordlet_container_cpi{cpi_field="cycles"} / ignoring (cpi_field)'
            ' (koordlet_container_cpi{cpi_field="instructions"} > 0)',
            labels=frozenset({"node", "container_id", "container_name", "pod_uid", "pod_name", "pod_namespace"}),
        ),
    ),
    alerts=(
        Alert(
            name="BestEffortEvictionsHigh",
            severity="warning",
            expression="sum by (node) (increase(koordlet_pod_eviction[30m])) > 10",
            lasts="5m",
            summary="koordlet evicted {{ $value | humanize }} pods from {{ $labels.node }} in 30 minutes",
            description="BE pods are evicted from {{ $labels.node }} faster than they can do their work.",
            meaning="The node lends more than it has: prod pods use more than was predicted, or thresholds are too"
            " tight.",
            steps=(
                "`koord evictions -A --actor koordlet --since 1h` lists the pods and the rules.",
                "`koord explain eviction NAMESPACE/POD` shows the numbers behind one of them.",
                "`koord explain node NODE` shows what the node lends; lower the thresholds of colocation-config.",
            ),
        ),
        Alert(
            name="BestEffortSuppressedToMinimum",
            severity="info",
            expression=f'(koordlet_be_suppress_cpu_cores{{type="cpuset"}} <= {MIN_CPUS}'
            f' or koordlet_be_suppress_cpu_cores{{type="cfsQuota"}} <= {MIN_QUOTA_US / _PERIOD_US:g})'
            " and on (node) koordlet_be_suppress_be_used_cpu_cores > 0",
            lasts="30m",
            summary="BE pods of {{ $labels.node }} have {{ $value }} cores",
            description="CPU suppression has left BE pods of {{ $labels.node }} the least that it may for 30 minutes.",
            meaning="Pods other than BE and the system use all that the threshold allows. Batch work on the node"
            " makes no"
            " progress.",
            steps=(
                "`koord explain node NODE` shows who uses the node.",
                "Raise `cpuSuppressThresholdPercent`, or let koord-descheduler move pods away (LowNodeLoad):"
                " `koord deschedule --dry-run` shows what it would do.",
            ),
        ),
        Alert(
            name="BatchRequestsExceedAllocatable",
            severity="warning",
            expression="sum by (node, resource) (koordlet_container_resource_requests)"
            " > sum by (node, resource) (koordlet_node_resource_allocatable)",
            lasts="15m",
            summary="pods on {{ $labels.node }} request more {{ $labels.resource }} than it lends",
            description="{{ $labels.node }} lends less {{ $labels.resource }} than pods there were scheduled with.",
            meaning="What the node lends fell after the pods came: prod pods need it back. Batch pods are throttled or"
            " evicted next.",
            steps=(
                "`koord explain node NODE` shows why the node lends what it lends.",
                "Where it is so on many nodes, lower `cpuReclaimThresholdPercent` and `memoryReclaimThresholdPercent`.",
            ),
        ),
        Alert(
            name="ContainerCPIHigh",
            severity="warning",
            expression=f"{_CPI} > 2 * avg_over_time({_CPI}[1d]) unless on (container_id) {_BATCH_CONTAINERS}",
            lasts="15m",
            summary="{{ $labels.pod_namespace }}/{{ $labels.pod_name }} needs twice its usual cycles for an"
            " instruction",
            description="Container {{ $labels.container_name }} on {{ $labels.node }} has {{ $value | humanize }}"
            " cycles per"
            " instruction, more than twice its average of a day.",
            meaning="Neighbours take cache and memory bandwidth from the container. Its latency rises though it"
            " has its CPUs.",
            steps=(
                "`koord top` shows who uses the node.",
                "Switch on resctrl for BE pods (`resctrlQOS`), or core scheduling for the container.",
                "`koord node cpus NODE` shows who shares cores.",
            ),
        ),
        Alert(
            name="PodCPUPressureHigh",
            severity="warning",
            expression=f"{_PRESSURE} > 30 unless on (pod_uid) {_BATCH_CONTAINERS}",
            lasts="15m",
            summary="{{ $labels.pod_namespace }}/{{ $labels.pod_name }} waits for CPU {{ $value | humanize }}% of"
            " the time",
            description="Threads of the pod on {{ $labels.node }} were runnable and not running for more than 30%"
            " of 5 minutes.",
            meaning="The pod is throttled by its own limit, or pods of its class take the CPU.",
            steps=(
                "`koord explain container NAMESPACE/POD/CONTAINER` shows quota, burst and CPUs, and who decided them.",
                "Where the limit throttles: switch on CPU burst (`cpuBurstStrategy`), or raise the limit.",
            ),
        ),
    ),
)

RUNTIME_HOOKS = AlertGroup(
    name="koord-runtime-hooks",
    title="Runtime hooks",
    alerts=(
        Alert(
            name="RuntimeHookFailing",
            severity="warning",
            expression=f'sum by (node, hook, stage) (rate({_HOOKS}{{status="failed"}}[10m])) > 0',
            lasts="10m",
            summary="hook {{ $labels.hook }} fails on {{ $labels.node }}",
            description="Hook {{ $labels.hook }} fails at {{ $labels.stage }} on {{ $labels.node }}.",
            meaning="Containers start without what the hook would give them, or do not start where the failure"
            " policy is"
            " Fail. The reconciler tries again later.",
            steps=(
                "`koord node hooks NODE` shows each hook with its last failure.",
                "`koord explain container NAMESPACE/POD/CONTAINER` shows what a container has.",
            ),
        ),
        Alert(
            name="RuntimeHookReconcilerFailing",
            severity="warning",
            expression=f'sum by (node) (rate({_RECONCILER}{{status="failed"}}[10m])) > 0',
            lasts="10m",
            summary="the reconciler of runtime hooks fails on {{ $labels.node }}",
            description="Runs of the reconciler end with an error on {{ $labels.node }}.",
            meaning="Values of running containers are not kept as hooks decide them.",
            steps=(
                "`koord node hooks NODE` shows the state of hooks.",
                "koordlet's log has a traceback for each error.",
            ),
        ),
        Alert(
            name="RuntimeProxyRefusesCalls",
            severity="critical",
            expression="sum by (instance, stage) (increase(koord_runtime_proxy_refused_calls_total[10m])) > 0",
            lasts="1m",
            summary="koord-runtime-proxy at {{ $labels.instance }} refuses calls of the kubelet",
            description="CRI calls are refused at {{ $labels.stage }}: a hook server with the failure policy Fail"
            " fails.",
            meaning="Pods do not start on the node.",
            steps=(
                "`koord doctor --node NODE` tells whether koordlet answers at its socket.",
                "Set the failure policy of the hook server to Ignore until it works again.",
            ),
        ),
        Alert(
            name="RuntimeProxyHookServerFailing",
            severity="warning",
            expression="sum by (instance, stage, outcome)"
            ' (rate(koord_runtime_proxy_hook_duration_seconds_count{outcome!="ok"}'
            "[10m])) > 0",
            lasts="10m",
            summary="a hook server fails at {{ $labels.instance }}: {{ $labels.outcome }}",
            description="Calls of a hook server at {{ $labels.stage }} end with {{ $labels.outcome }}.",
            meaning="koordlet, or another hook server, does not answer in time or not as it should.",
            steps=("`koord node hooks NODE` shows whether koordlet serves.", "Look at the log of koord-runtime-proxy."),
        ),
    ),
)

YARN = AlertGroup(
    name="koord-yarn-copilot",
    title="YARN on nodes",
    alerts=(
        Alert(
            name="YarnCopilotWithoutNodeManager",
            severity="warning",
            expression="sum by (instance)"
            ' (rate(koord_yarn_copilot_node_manager_requests_total{outcome="error"}[10m])) > 0',
            lasts="10m",
            summary="koord-yarn-copilot at {{ $labels.instance }} has no answer of its NodeManager",
            description="Questions for the containers of YARN at {{ $labels.instance }} fail.",
            meaning="koordlet does not know YARN's containers on the node and evicts none of them; other best-effort"
            " pods go in their place. Suppression goes on.",
            steps=(
                "`/readyz` of the copilot's port, and its log, say what the NodeManager answered.",
                "Set `koordYarnCopilot.nodeManagerEndpoint` where it listens elsewhere than on port 8042.",
                "Leave nodes without a NodeManager out by `koordYarnCopilot.nodeSelector`.",
            ),
        ),
        Alert(
            name="YarnCopilotCannotKill",
            severity="warning",
            expression='sum by (instance) (increase(koord_yarn_copilot_container_kills_total{outcome="failed"}[10m]))'
            " > 0",
            lasts="1m",
            summary="koord-yarn-copilot at {{ $labels.instance }} cannot kill containers",
            description="Containers of YARN that koordlet evicts at {{ $labels.instance }} run on.",
            meaning="The NodeManager puts containers into other cgroups than the copilot looks at, or the copilot does"
            " not see the processes of the host.",
            steps=(
                "`koord evictions -n yarn -o json` has the copilot's answer of each attempt.",
                "Compare `koordYarnCopilot.cgroupPath` with the NodeManager's `cgroups.hierarchy`.",
            ),
        ),
    ),
)

NODE_GROUPS = (KOORDLET, PODS_ON_NODES, RUNTIME_HOOKS, YARN)
