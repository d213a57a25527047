"""Alerts about koord-scheduler, koord-manager, koord-descheduler and koord-yarn-operator.

kube-scheduler serves metrics of the same names as koord-scheduler, so that those are selected by job.
"""

from __future__ import annotations

from tools.monitoring.alert import Alert, AlertGroup

_SCHEDULER = 'job="koord-scheduler"'
_WEBHOOK_MS = "koord_manager_webhook_webhook_duration_milliseconds_bucket"
_RECONCILED = "slo_controller_node_resource_reconcile_count"
_DAY_S = 86_400


def _no_leader(program: str, lease: str, effect: str) -> Alert:
    status = f'leader_election_master_status{{job="{program}"}}'
    camel = "".join(part.capitalize() for part in program.split("-"))
    return Alert(
        name=f"{camel}NoLeader",
        severity="critical",
        expression=f"sum({status}) < 1 or absent({status})",
        lasts="2m",
        summary=f"no replica of {program} leads",
        description=f"No replica of {program} has held the lease {lease} for 2 minutes.",
        meaning=f"{effect} All replicas are down, or none can write its lease.",
        steps=(
            f"`kubectl -n koordinator-system get pods -l koord-app={program}` shows the replicas.",
            f"`kubectl -n koordinator-system get lease {lease} -o yaml` shows who held it last.",
            "`koord doctor --only programs --only rbac` checks the programs and their rights.",
        ),
    )


SCHEDULER = AlertGroup(
    name="koord-scheduler",
    title="koord-scheduler",
    alerts=(
        _no_leader("koord-scheduler", "koord-scheduler", "Pods of koord-scheduler stay Pending."),
        Alert(
            name="KoordSchedulerQueueStuck",
            severity="critical",
            expression=f'sum by (instance) (scheduler_pending_pods{{{_SCHEDULER},queue=~"active|backoff"}}) > 0'
            f" and on (instance) leader_election_master_status{{{_SCHEDULER}}} == 1"
            f" unless on (instance) sum by (instance)"
            f" (rate(scheduler_schedule_attempts_total{{{_SCHEDULER}}}[10m])) > 0",
            lasts="10m",
            summary="koord-scheduler tries no pod though {{ $value }} wait",
            description="Pods wait in the active or backoff queue, and the leader at {{ $labels.instance }} has"
            " made no attempt for"
            " 10 minutes.",
            meaning="The scheduling loop hangs, or waits for informers or for the API server.",
            steps=(
                "`koord doctor --only programs` checks the program.",
                "`/debug/tasks` of the leader shows what each of its tasks waits for.",
                "Delete the leader's pod; another replica takes over.",
            ),
        ),
        Alert(
            name="KoordSchedulerPodsUnschedulable",
            severity="info",
            expression=f"max by (plugin) (scheduler_unschedulable_pods{{{_SCHEDULER}}}) > 0",
            lasts="1h",
            summary="{{ $value }} pods wait because of {{ $labels.plugin }}",
            description="Pods that {{ $labels.plugin }} refused have been waiting for an hour.",
            meaning="No node suits the pods, or their quota, gang or reservation does not allow them.",
            steps=(
                "`koord explain pod NAMESPACE/POD` says why a pod is nowhere.",
                "`koord quota`, `koord gang` and `koord reservation` show what it may wait for.",
            ),
        ),
        Alert(
            name="KoordSchedulerAttemptErrors",
            severity="warning",
            expression=f'sum(rate(scheduler_schedule_attempts_total{{{_SCHEDULER},result="error"}}[10m]))'
            f" / sum(rate(scheduler_schedule_attempts_total{{{_SCHEDULER}}}[10m])) > 0.05",
            lasts="10m",
            summary="{{ $value | humanizePercentage }} of scheduling attempts end with an error",
            description="Attempts end with an error of the scheduler or of the API server, not with a pod that"
            " does not fit.",
            meaning="Bindings are refused, a plugin fails, or the API server does not answer.",
            steps=(
                "koord-scheduler's log names the pod and the error.",
                "`koord doctor --only rbac` checks its rights.",
            ),
        ),
        Alert(
            name="KoordSchedulerSlow",
            severity="warning",
            expression="histogram_quantile(0.99, sum by (le) (rate("
            f'scheduler_scheduling_attempt_duration_seconds_bucket{{{_SCHEDULER},result="scheduled"}}[10m]))) > 1',
            lasts="15m",
            summary="99% of attempts take up to {{ $value | humanizeDuration }}",
            description="The 99th percentile of an attempt, algorithm and binding, is above a second.",
            meaning="The API server is slow, the program has too little CPU, or a plugin is expensive.",
            steps=(
                "The dashboard koord-scheduler shows the time of each extension point and plugin.",
                "Raise `scheduler.resources` where its CPU is used up (KoordProgramCPUHigh).",
            ),
        ),
        Alert(
            name="ElasticQuotaOverUsed",
            severity="warning",
            expression='scheduler_elastic_quota_status{field="used",is_parent="false"}'
            ' > ignoring (field) scheduler_elastic_quota_status{field="runtime",is_parent="false"}',
            lasts="30m",
            summary="quota {{ $labels.name }} uses more {{ $labels.resource }} than its runtime",
            description="Pods of quota {{ $labels.name }} have had more {{ $labels.resource }} than its runtime"
            " for 30 minutes.",
            meaning="The quota borrowed what others want back now. With `monitorAllQuotas` the scheduler takes it"
            " back by"
            " eviction; without it, nobody does.",
            steps=(
                "`koord quota` shows what quotas may use now, and who lends to whom.",
                "Switch on `enableRuntimeQuota` and the revocation of over-used quotas, or raise the quota's min.",
            ),
        ),
    ),
)

MANAGER = AlertGroup(
    name="koord-manager",
    title="koord-manager",
    alerts=(
        _no_leader("koord-manager", "koordinator-manager", "What nodes lend is not brought up to date."),
        Alert(
            name="KoordManagerWebhookUnreachable",
            severity="critical",
            expression="min by (path) (koord_manager_webhook_reachable) == 0",
            lasts="5m",
            summary="API servers cannot call the webhook {{ $labels.path }}",
            description="A review sent the way an API server sends it gets no answer at {{ $labels.path }}.",
            meaning="With the failure policy Ignore, pods come in without their profile and quota check; with"
            " Fail, they are"
            " refused.",
            steps=(
                "`koord doctor --only webhooks --only webhook-service` checks configurations, service and endpoints.",
                "`kubectl get events -A --field-selector reason=WebhookUnreachable` has the reason.",
                "Look for a NetworkPolicy or a firewall between API servers and the webhook's port.",
            ),
        ),
        Alert(
            name="KoordManagerWebhookErrors",
            severity="warning",
            expression="sum by (path) (rate(koord_manager_webhook_failed_decisions_total[10m])) > 0",
            lasts="10m",
            summary="admission decisions at {{ $labels.path }} end with an error",
            description="koord-manager fails to decide about requests at {{ $labels.path }}.",
            meaning="A defect of koord-manager: the failure policy decides about the request.",
            steps=(
                "koord-manager's log has a traceback.",
                "`koord support-bundle` is what a report of the problem needs.",
            ),
        ),
        Alert(
            name="KoordManagerWebhookSlow",
            severity="warning",
            expression=f"histogram_quantile(0.99, sum by (le, object_type) (rate({_WEBHOOK_MS}[10m]))) > 500",
            lasts="15m",
            summary="admission of {{ $labels.object_type }}s takes up to {{ $value | humanize }} ms",
            description="The 99th percentile of admission decisions about {{ $labels.object_type }}s is above 500 ms.",
            meaning="Every create or update of such an object waits for it.",
            steps=(
                "Raise `manager.resources` where its CPU is used up (KoordProgramCPUHigh), or `manager.replicas`.",
                "The dashboard koord-health shows which webhook is slow.",
            ),
        ),
        Alert(
            name="KoordManagerWebhookCertificateExpiring",
            severity="critical",
            expression=f"min by (part) (koord_manager_webhook_certificate_not_after_seconds) - time() < {30 * _DAY_S}",
            lasts="1h",
            summary="the webhook's {{ $labels.part }} runs out in {{ $value | humanizeDuration }}",
            description="It should have been renewed half a year before its end.",
            meaning="Rotation does not work: koord-manager cannot write the Secret or the webhook configurations."
            " When the"
            " certificate has run out, API servers do not trust the webhook.",
            steps=(
                "`koord doctor --only webhook-certificate --only rbac` checks the certificate and the rights to"
                " renew it.",
                "`kubectl -n koordinator-system delete secret koordinator-webhook-certs` makes a new one.",
            ),
        ),
        Alert(
            name="KoordManagerCertificateSyncFailing",
            severity="warning",
            expression="sum by (instance)"
            ' (increase(koord_manager_webhook_certificate_syncs_total{status="failed"}[30m])) > 10',
            lasts="10m",
            summary="koord-manager at {{ $labels.instance }} cannot keep its webhook configurations",
            description="Checks of certificate and webhook configurations have failed {{ $value | humanize }}"
            " times in 30 minutes.",
            meaning="A change of the certificate would not reach API servers.",
            steps=(
                "koord-manager's log names the object and the error.",
                "`koord doctor --only webhooks --only rbac` checks objects and rights.",
            ),
        ),
        Alert(
            name="KoordManagerWebhookBypassed",
            severity="warning",
            expression="max by (namespace) (koord_manager_webhook_bypassed_pods) > 0",
            lasts="15m",
            summary="{{ $value }} pods in {{ $labels.namespace }} came in without their profile",
            description="Pods in {{ $labels.namespace }} look as if they were admitted while koord-manager did not"
            " answer.",
            meaning="They lack QoS class, priority or batch resources: they run as ordinary pods.",
            steps=(
                "`kubectl get events -n NAMESPACE --field-selector reason=WebhookBypassed` names the pods.",
                "Create the pods again: `kubectl rollout restart` of their workloads.",
            ),
        ),
        Alert(
            name="KoordManagerConfigRejected",
            severity="warning",
            expression="max by (key) (koord_manager_slo_config_rejected) == 1",
            lasts="10m",
            summary="{{ $labels.key }} of slo-controller-config is rejected",
            description="The last good {{ $labels.key }} is in use, not the one that is written.",
            meaning="The document is no JSON, or has a value that no node can use.",
            steps=(
                "`koord config check FILE` checks the file without a cluster.",
                "Events on the ConfigMap `slo-controller-config` name the value.",
            ),
        ),
        Alert(
            name="KoordManagerReconcileFailing",
            severity="warning",
            expression=f'sum(rate({_RECONCILED}{{status="failed"}}[10m])) / sum(rate({_RECONCILED}[10m])) > 0.1',
            lasts="15m",
            summary="{{ $value | humanizePercentage }} of node resource reconciliations fail",
            description="koord-manager cannot write what nodes lend.",
            meaning="Batch and mid resources of nodes are out of date.",
            steps=(
                "`koord doctor --only rbac` checks koord-manager's rights.",
                "`koord explain node NODE` shows the last decision about a node.",
            ),
        ),
    ),
)

DESCHEDULER = AlertGroup(
    name="koord-descheduler",
    title="koord-descheduler",
    alerts=(
        _no_leader("koord-descheduler", "koord-descheduler", "Nodes are not rebalanced, and migrations stand still."),
        Alert(
            name="KoordDeschedulerRoundsFailing",
            severity="warning",
            expression='sum(rate(koord_descheduler_rounds_total{result="error"}[30m]))'
            " / sum(rate(koord_descheduler_rounds_total[30m])) > 0.5",
            lasts="15m",
            summary="{{ $value | humanizePercentage }} of the descheduler's rounds fail",
            description="Rounds end with an error before all plugins have run.",
            meaning="A plugin fails, or the cluster cannot be read.",
            steps=(
                "koord-descheduler's log names plugin and error.",
                "`koord deschedule --dry-run` runs a round that changes nothing.",
            ),
        ),
        Alert(
            name="KoordDeschedulerEvictionsFailing",
            severity="warning",
            expression='sum by (strategy) (rate(descheduler_pods_evicted{result="error"}[30m]))'
            " / sum by (strategy) (rate(descheduler_pods_evicted[30m])) > 0.5",
            lasts="30m",
            summary="{{ $value | humanizePercentage }} of the evictions of {{ $labels.strategy }} fail",
            description="Pods that {{ $labels.strategy }} wants to move are not evicted.",
            meaning="Disruption budgets do not allow it, or the right to evict is missing.",
            steps=(
                "`koord migrations` shows which pods are on the move and what blocks them.",
                "`koord explain eviction NAMESPACE/POD` shows how one of them ended.",
            ),
        ),
    ),
)

YARN_OPERATOR = AlertGroup(
    name="koord-yarn-operator",
    title="koord-yarn-operator",
    alerts=(
        Alert(
            name="KoordYarnClusterFailing",
            severity="warning",
            expression="max by (cluster) (koord_yarn_operator_cluster_up) < 1",
            lasts="15m",
            summary="NodeManagers of the YARN cluster {{ $labels.cluster }} do not follow what nodes lend",
            description="No round of the YARN cluster {{ $labels.cluster }} has succeeded for 15 minutes.",
            meaning="Its ResourceManagers cannot be reached, or refuse the operator's user.",
            steps=(
                "`koord doctor --only yarn` names the reason.",
                "Add the operator's user to `yarn.admin.acl`, or correct the addresses in the ConfigMap yarn-config.",
            ),
        ),
        Alert(
            name="KoordYarnNodeManagersLeftOut",
            severity="info",
            expression="max by (reason) (koord_yarn_operator_problems) > 0",
            lasts="1h",
            summary="{{ $value }} NodeManagers take no part in co-location ({{ $labels.reason }})",
            description="Pods of NodeManagers have been left out for an hour because of {{ $labels.reason }}.",
            meaning="They offer what their own yarn-site.xml says, beside what Kubernetes gives to batch pods.",
            steps=(
                "`koord doctor --only yarn` names the pods.",
                "docs/concepts/yarn.md says what a NodeManager's pod needs.",
            ),
        ),
    ),
)


CONTROL_PLANE_GROUPS = (SCHEDULER, MANAGER, DESCHEDULER, YARN_OPERATOR)
