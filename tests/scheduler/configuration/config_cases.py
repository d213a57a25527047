"""Configuration files that kube-scheduler takes or refuses. KUBECONFIG stands for a path that it can read."""

from __future__ import annotations

KUBECONFIG = "KUBECONFIG"
KIND = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
HEAD = f"{KIND}clientConnection: {{kubeconfig: {KUBECONFIG}}}\n"


def plugins(text: str) -> str:
    """A profile with these plugins, in YAML's flow style."""
    return f"{HEAD}profiles:\n- schedulerName: a\n  plugins: {{{text}}}\n"


def args(text: str) -> str:
    """A profile with these entries of pluginConfig."""
    return f"{HEAD}profiles:\n- schedulerName: a\n  pluginConfig: [{text}]\n"


ACCEPTED = {
    "nothing-stated": HEAD,
    "nulls": f"{HEAD}profiles: null\nparallelism: null\nextenders: null\n",
    "only-the-first-document-counts": f"{HEAD}---\nfoo: 1\n",
    "a-whole-number-with-a-point": f"{HEAD}parallelism: 3.0\n",
    "one-default-off": plugins("multiPoint: {disabled: [{name: ImageLocality}]}"),
    "off-by-a-weight-too": plugins("multiPoint: {disabled: [{name: ImageLocality, weight: 4}]}"),
    "another-weight-in-place": plugins("multiPoint: {enabled: [{name: NodeAffinity, weight: 9}]}"),
    "off-and-on-again-goes-last": plugins("multiPoint: {disabled: [{name: NodeName}], enabled: [{name: NodeName}]}"),
    "only-the-needed-two": plugins(
        "multiPoint: {disabled: [{name: '*'}], enabled: [{name: PrioritySort}, {name: DefaultBinder}]}"
    ),
    "only-one-score": plugins("score: {disabled: [{name: '*'}], enabled: [{name: ImageLocality}]}"),
    "a-weight-of-zero": plugins("score: {enabled: [{name: NodeAffinity, weight: 0}]}"),
    "a-weight-at-a-filter": plugins("filter: {enabled: [{name: NodeAffinity, weight: 5}]}"),
    "the-largest-weight": plugins("score: {enabled: [{name: NodeAffinity, weight: 2147483647}]}"),
    "a-negative-weight-after-larger-ones": plugins("multiPoint: {enabled: [{name: NodeAffinity, weight: -1}]}"),
    "an-unknown-plugin-switched-off": plugins("filter: {disabled: [{name: Foo}]}"),
    "points-where-ours-has-nothing-to-do": plugins(
        "preScore: {enabled: [{name: VolumeBinding}]}, score: {enabled: [{name: DynamicResources, weight: 3}]}"
    ),
    "args-of-nobody": args("{name: Foo, args: {a: 1}}"),
    "args-of-a-plugin-that-takes-none": args("{name: NodeName, args: {a: 1}}"),
    "an-entry-without-args": args("{name: NodeResourcesFit}"),
    "args-of-a-plugin-that-is-off": HEAD + "profiles:\n- schedulerName: a\n"
    "  plugins: {multiPoint: {disabled: [{name: InterPodAffinity}]}}\n"
    "  pluginConfig: [{name: InterPodAffinity, args: {hardPodAffinityWeight: 3}}]\n",
    "many-args": args(
        """
    {name: InterPodAffinity, args: {hardPodAffinityWeight: 0, ignorePreferredTermsOfExistingPods: true}},
    {name: NodeResourcesFit, args: {ignoredResources: [a.b/c], ignoredResourceGroups: [x.y], scoringStrategy:
      {type: RequestedToCapacityRatio, resources: [{name: cpu}],
       requestedToCapacityRatio: {shape: [{utilization: 0, score: 0}, {utilization: 100, score: 10}]}}}},
    {name: PodTopologySpread, args: {defaultingType: List, defaultConstraints:
      [{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: ScheduleAnyway}]}},
    {name: NodeAffinity, args: {addedAffinity: {requiredDuringSchedulingIgnoredDuringExecution:
      {nodeSelectorTerms: [{matchExpressions: [{key: a, operator: In, values: [b]}]}]}}}},
    {name: DynamicResources, args: {filterTimeout: 90s}},
    {name: VolumeBinding, args: {bindTimeoutSeconds: 0}},
    {name: DefaultPreemption, args: {minCandidateNodesPercentage: 0}},
    {name: NodeResourcesBalancedAllocation, args: {resources: [{name: cpu}]}}"""
    ),
    "a-timeout-of-zero": args("{name: DynamicResources, args: {filterTimeout: 0s}}"),
    "the-process": f"{KIND}clientConnection: {{kubeconfig: {KUBECONFIG}, qps: 2.5, burst: 3, "
    "acceptContentTypes: a/b, contentType: application/json}\n"
    "leaderElection: {leaderElect: false, leaseDuration: 90s, resourceName: x}\nenableProfiling: false\n"
    "percentageOfNodesToScore: 30\ndelayCacheUntilActive: true\nparallelism: 4\npodInitialBackoffSeconds: 2\n"
    "podMaxBackoffSeconds: 2\nprofiles: [{percentageOfNodesToScore: 0}]\n",
    "zero-durations-mean-the-defaults": f"{HEAD}leaderElection: {{retryPeriod: 0s}}\n",
    "contention-alone": f"{HEAD}enableProfiling: false\nenableContentionProfiling: true\n",
    "extenders": f"{HEAD}extenders:\n"
    "- {urlPrefix: 'http://a', filterVerb: f, prioritizeVerb: p, weight: 3, enableHTTPS: true, httpTimeout: 5s,\n"
    "   nodeCacheCapable: true, ignorable: true, tlsConfig: {insecure: true, serverName: x},\n"
    "   managedResources: [{name: a.b/c, ignoredByScheduler: true}, {name: a.b/d}]}\n"
    "- {urlPrefix: 'http://b'}\n- {urlPrefix: 'http://c', tlsConfig: {}, httpTimeout: 1500ms}\n",
    "two-profiles-of-one-queue": f"{HEAD}profiles:\n"
    "- {schedulerName: a, plugins: {queueSort: {disabled: [{name: '*'}], enabled: [{name: PrioritySort}]}}}\n"
    "- {schedulerName: b, plugins: {queueSort: {disabled: [{name: '*'}], enabled: [{name: PrioritySort}]}}}\n",
}

REFUSED = {
    "unknown-fields": f"{HEAD}foo: 1\nprofiles: [{{schedulerName: a, bar: 2}}]\n",
    "field-in-another-case": f"{HEAD}Parallelism: 3\n",
    "key-twice": f"{HEAD}parallelism: 3\nparallelism: 4\n",
    "key-twice-in-args": args("{name: NodeResourcesFit, args: {ignoredResources: [a], ignoredResources: [b]}}"),
    "old-version": HEAD.replace("k8s.io/v1", "k8s.io/v1beta3"),
    "another-kind": HEAD.replace("KubeSchedulerConfiguration", "Foo"),
    "no-kind": "apiVersion: kubescheduler.config.k8s.io/v1\n",
    "no-version": "kind: KubeSchedulerConfiguration\n",
    "empty": "",
    "a-list": "- a\n",
    "not-yaml": "a: [\n",
    "word-for-a-number": f"{HEAD}parallelism: many\n",
    "number-as-text": f"{HEAD}parallelism: '3'\n",
    "half-a-number": f"{HEAD}parallelism: 3.5\n",
    "number-for-a-list": f"{HEAD}profiles: 3\n",
    "number-too-large": f"{HEAD}parallelism: 99999999999\n",
    "no-parallelism": f"{HEAD}parallelism: 0\n",
    "two-profiles-of-one-name": f"{HEAD}profiles: [{{schedulerName: a}}, {{schedulerName: a}}]\n",
    "second-profile-without-name": f"{HEAD}profiles: [{{schedulerName: a}}, {{}}]\n",
    "empty-name": f"{HEAD}profiles: [{{schedulerName: ''}}]\n",
    "percentages": f"{HEAD}percentageOfNodesToScore: 200\nprofiles: [{{percentageOfNodesToScore: -1}}]\n",
    "backoff-of-zero": f"{HEAD}podInitialBackoffSeconds: 0\n",
    "backoff-that-shrinks": f"{HEAD}podInitialBackoffSeconds: 5\npodMaxBackoffSeconds: 3\n",
    "lease-shorter-than-renewal": f"{HEAD}leaderElection: {{leaseDuration: 5s, renewDeadline: 6s}}\n",
    "duration-without-unit": f"{HEAD}leaderElection: {{leaseDuration: '10'}}\n",
    "resource-lock": f"{HEAD}leaderElection: {{resourceLock: endpoints}}\n",
    "negative-burst": f"{KIND}clientConnection: {{kubeconfig: {KUBECONFIG}, burst: -1}}\n",
    "no-queue-sort": plugins("queueSort: {disabled: [{name: '*'}]}"),
    "no-binder": plugins("bind: {disabled: [{name: '*'}]}"),
    "nothing-at-all": plugins("multiPoint: {disabled: [{name: '*'}]}"),
    "two-queue-sorts": plugins("queueSort: {enabled: [{name: PrioritySort}, {name: PrioritySort}]}"),
    "queue-sorts-differ": f"{HEAD}profiles: [{{schedulerName: a}}, {{schedulerName: b, "
    "plugins: {queueSort: {enabled: [{name: PrioritySort}]}}}]\n",
    "queue-sort-args-differ": f"{HEAD}profiles: [{{schedulerName: a}}, {{schedulerName: b, "
    "pluginConfig: [{name: PrioritySort, args: {a: 1}}]}]\n",
    "unknown-plugin": plugins("filter: {enabled: [{name: Foo}]}"),
    "unknown-plugin-everywhere": plugins("multiPoint: {enabled: [{name: Foo}]}"),
    "plugin-without-name": plugins("filter: {enabled: [{weight: 1}]}"),
    "plugin-at-a-point-it-lacks": plugins("preFilter: {enabled: [{name: NodeName}]}"),
    "plugin-twice-at-a-point": plugins("filter: {enabled: [{name: NodeName}, {name: NodeName}]}"),
    "plugin-twice-everywhere": plugins("multiPoint: {enabled: [{name: NodeName}, {name: NodeName}]}"),
    "plugin-of-the-past": plugins("filter: {enabled: [{name: EBSLimits}]}"),
    "args-of-the-past": args("{name: GCEPDLimits}"),
    "negative-weight": plugins("score: {enabled: [{name: NodeAffinity, weight: -1}]}"),
    "weight-too-large": plugins("score: {enabled: [{name: NodeAffinity, weight: 2147483648}]}"),
    "args-twice": args("{name: Foo}, {name: Foo}"),
    "args-with-unknown-field": args("{name: NodeResourcesFit, args: {a: 1}}"),
    "args-of-wrong-type": args("{name: InterPodAffinity, args: {hardPodAffinityWeight: x}}"),
    "args-out-of-range": args("{name: InterPodAffinity, args: {hardPodAffinityWeight: 101}}"),
    "args-of-another-kind": args(
        "{name: InterPodAffinity, args: {apiVersion: kubescheduler.config.k8s.io/v1, kind: NodeAffinityArgs}}"
    ),
    "args-of-no-kind": args("{name: InterPodAffinity, args: {apiVersion: kubescheduler.config.k8s.io/v1, kind: Foo}}"),
    "scoring-of-no-kind": args("{name: NodeResourcesFit, args: {scoringStrategy: {type: X}}}"),
    "shape-without-its-gate": args("{name: VolumeBinding, args: {shape: [{utilization: 0, score: 0}]}}"),
    "negative-timeout": args("{name: DynamicResources, args: {filterTimeout: -1s}}"),
    "affinity-that-cannot-be-read": args(
        "{name: NodeAffinity, args: {addedAffinity: {requiredDuringSchedulingIgnoredDuringExecution: "
        "{nodeSelectorTerms: [{matchExpressions: [{key: a, operator: Like}]}]}}}}"
    ),
    "two-extenders-that-bind": f"{HEAD}extenders: [{{urlPrefix: 'http://a', bindVerb: b}}, "
    "{urlPrefix: 'http://b', bindVerb: b}]\n",
    "extender-without-weight": f"{HEAD}extenders: [{{urlPrefix: 'http://a', prioritizeVerb: p}}]\n",
    "extender-with-unknown-field": f"{HEAD}extenders: [{{urlPrefix: 'http://a', foo: 1}}]\n",
    "extender-for-cpu": f"{HEAD}extenders: [{{urlPrefix: 'http://a', managedResources: [{{name: cpu}}]}}]\n",
    "extender-for-one-thing-twice": f"{HEAD}extenders: [{{urlPrefix: 'http://a', "
    "managedResources: [{name: e.com/x}, {name: e.com/x}]}]\n",
    "extender-that-trusts-all-and-one": f"{HEAD}extenders: [{{urlPrefix: 'http://a', "
    "tlsConfig: {insecure: true, caData: YWJj}}]\n",
}
