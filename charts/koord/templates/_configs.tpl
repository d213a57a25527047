{{- /* Written by tools/chart: change the declarations of `koord manifests` and run `make chart`. */ -}}
{{- define "koord.schedulerConfig" -}}
{{- with .Values.scheduler.config }}
{{- if kindIs "string" . }}{{ . }}{{ else }}{{ toYaml . }}{{ end }}
{{- else -}}
apiVersion: kubescheduler.config.k8s.io/v1
clientConnection:
  acceptContentTypes: ''
  burst: 100
  contentType: application/json
  kubeconfig: ''
  qps: 50
enableContentionProfiling: true
enableProfiling: true
kind: KubeSchedulerConfiguration
leaderElection:
  leaderElect: true
  leaseDuration: 15s
  renewDeadline: 10s
  resourceLock: leases
  resourceName: koord-scheduler
  resourceNamespace: {{ include "koord.namespace" . }}
  retryPeriod: 2s
parallelism: 16
percentageOfNodesToScore: 0
podInitialBackoffSeconds: 1
podMaxBackoffSeconds: 10
profiles:
- pluginConfig:
  - args:
      apiVersion: kubescheduler.config.k8s.io/v1
      awareNetworkTopology: true
      controllerWorkers: 1
      defaultMatchPolicy: once-satisfied
      defaultTimeout: 10m0s
      enablePreemption: {{ .Values.scheduler.enableJobPreemption }}
      kind: CoschedulingArgs
    name: Coscheduling
  - args:
      apiVersion: kubescheduler.config.k8s.io/v1
      kind: DefaultPreemptionArgs
      minCandidateNodesAbsolute: 100
      minCandidateNodesPercentage: 10
    name: DefaultPreemption
  - args:
      apiVersion: kubescheduler.config.k8s.io/v1
      {{- if .Values.scheduler.deviceShare.gpuShareUnsupportedModels }}
      gpuShareUnsupportedModels:
        {{- toYaml .Values.scheduler.deviceShare.gpuShareUnsupportedModels | nindent 8 }}
      {{- end }}
      gpuSharedResourceTemplatesConfig:
        configMapName: gpu-shared-resource-templates
        configMapNamespace: {{ include "koord.namespace" . }}
        matchedResources:
        - huawei.com/npu-core
      kind: DeviceShareArgs
      scoringStrategy:
        resources:
        - name: koordinator.sh/gpu-memory-ratio
          weight: 1
        - name: koordinator.sh/gpu-memory
          weight: 1
        - name: koordinator.sh/rdma
          weight: 1
        - name: koordinator.sh/fpga
          weight: 1
        type: LeastAllocated
    name: DeviceShare
  - args:
      apiVersion: kubescheduler.config.k8s.io/v1
      filterTimeout: 10s
      kind: DynamicResourcesArgs
    name: DynamicResources
  - args:
      apiVersion: kubescheduler.config.k8s.io/v1
      defaultQuotaGroupMax:
        cpu: '1844674407370955161'
        memory: '1844674407370955161'
      delayEvictTime: 2m0s
      disableDefaultQuotaPreemption: true
      enableCheckParentQuota: false
      enableMinQuotaScale: true
      enableQueueHint: false
      enableRuntimeQuota: true
      kind: ElasticQuotaArgs
      monitorAllQuotas: false
      quotaGroupNamespace: {{ include "koord.namespace" . }}
      quotaSnapshotUpdateInterval: 2m0s
      revokePodInterval: 1s
      systemQuotaGroupMax:
        cpu: '1844674407370955161'
        memory: '1844674407370955161'
    name: ElasticQuota
  - args:
      apiVersion: kubescheduler.config.k8s.io/v1
      hardPodAffinityWeight: 1
      ignorePreferredTermsOfExistingPods: false
      kind: InterPodAffinityArgs
    name: InterPodAffinity
  - args:
      apiVersion: kubescheduler.config.k8s.io/v1
      enableScheduleWhenNodeMetricsExpired: false
      estimatedScalingFactors:
        cpu: 85
        memory: 70
      filterExpiredNodeMetrics: false
      kind: LoadAwareSchedulingArgs
      nodeMetricExpirationSeconds: 300
      resourceWeights:
        cpu: 1
        memory: 1
      usageThresholds:
        cpu: 65
        memory: 95
    name: LoadAwareScheduling
  - args:
      apiVersion: kubescheduler.config.k8s.io/v1
      kind: NodeAffinityArgs
    name: NodeAffinity
  - args:
      apiVersion: kubescheduler.config.k8s.io/v1
      defaultCPUBindPolicy: FullPCPUs
      kind: NodeNUMAResourceArgs
      numaScoringStrategy:
        resources:
        - name: cpu
          weight: 1
        - name: memory
          weight: 1
        type: LeastAllocated
      scoringStrategy:
        resources:
        - name: cpu
          weight: 1
        - name: memory
          weight: 1
        type: LeastAllocated
    name: NodeNUMAResource
  - args:
      apiVersion: kubescheduler.config.k8s.io/v1
      kind: NodeResourcesBalancedAllocationArgs
      resources:
      - name: cpu
        weight: 1
      - name: memory
        weight: 1
    name: NodeResourcesBalancedAllocation
  - args:
      apiVersion: kubescheduler.config.k8s.io/v1
      kind: NodeResourcesFitArgs
      scoringStrategy:
        resources:
        - name: cpu
          weight: 1
        - name: memory
          weight: 1
        - name: kubernetes.io/batch-cpu
          weight: 1
        - name: kubernetes.io/batch-memory
          weight: 1
        type: LeastAllocated
    name: NodeResourcesFit
  - args:
      apiVersion: kubescheduler.config.k8s.io/v1
      defaultingType: System
      kind: PodTopologySpreadArgs
    name: PodTopologySpread
  - args:
      apiVersion: kubescheduler.config.k8s.io/v1
      controllerWorkers: 1
      enablePreemption: false
      gcDurationSeconds: 86400
      gcIntervalSeconds: 60
      kind: ReservationArgs
      minCandidateNodesAbsolute: 100
      minCandidateNodesPercentage: 10
      resyncIntervalSeconds: 60
    name: Reservation
  - args:
      apiVersion: kubescheduler.config.k8s.io/v1
      kind: SchedulingHintArgs
      maxHintNodes: 100
    name: SchedulingHint
  - args:
      apiVersion: kubescheduler.config.k8s.io/v1
      bindTimeoutSeconds: 600
      kind: VolumeBindingArgs
    name: VolumeBinding
  plugins:
    bind:
      disabled:
      - name: '*'
        weight: 0
      enabled:
      - name: Reservation
        weight: 0
      - name: DefaultBinder
        weight: 0
    filter:
      enabled:
      - name: Reservation
        weight: 0
      - name: LoadAwareScheduling
        weight: 0
      - name: NodeNUMAResource
        weight: 0
      - name: DeviceShare
        weight: 0
    multiPoint:
      enabled:
      - name: SchedulingGates
        weight: 0
      - name: PrioritySort
        weight: 0
      - name: NodeUnschedulable
        weight: 0
      - name: NodeName
        weight: 0
      - name: TaintToleration
        weight: 3
      - name: NodeAffinity
        weight: 2
      - name: NodePorts
        weight: 0
      - name: NodeResourcesFit
        weight: 1
      - name: VolumeRestrictions
        weight: 0
      - name: NodeVolumeLimits
        weight: 0
      - name: VolumeBinding
        weight: 0
      - name: VolumeZone
        weight: 0
      - name: PodTopologySpread
        weight: 2
      - name: InterPodAffinity
        weight: 2
      - name: DynamicResources
        weight: 2
      - name: DefaultPreemption
        weight: 0
      - name: NodeResourcesBalancedAllocation
        weight: 1
      - name: ImageLocality
        weight: 1
      - name: DefaultBinder
        weight: 0
    permit:
      enabled:
      - name: Coscheduling
        weight: 0
    postBind:
      enabled:
      - name: Coscheduling
        weight: 0
    postFilter:
      disabled:
      - name: '*'
        weight: 0
      enabled:
      - name: Reservation
        weight: 0
      - name: Coscheduling
        weight: 0
      - name: ElasticQuota
        weight: 0
      {{- if not .Values.scheduler.enableJobPreemption }}
      - name: DefaultPreemption
        weight: 0
      {{- end }}
    preBind:
      enabled:
      - name: NodeNUMAResource
        weight: 0
      - name: DeviceShare
        weight: 0
      - name: Reservation
        weight: 0
      - name: Coscheduling
        weight: 0
      - name: DefaultPreBind
        weight: 0
    preEnqueue:
      enabled:
      - name: Coscheduling
        weight: 0
    preFilter:
      enabled:
      - name: SchedulingHint
        weight: 0
      - name: Coscheduling
        weight: 0
      - name: Reservation
        weight: 0
      - name: NodeNUMAResource
        weight: 0
      - name: DeviceShare
        weight: 0
      - name: ElasticQuota
        weight: 0
    preScore:
      enabled:
      - name: Reservation
        weight: 0
      - name: Coscheduling
        weight: 0
    queueSort:
      disabled:
      - name: '*'
        weight: 0
      enabled:
      - name: PrioritySort
        weight: 0
    reserve:
      enabled:
      - name: Reservation
        weight: 0
      - name: LoadAwareScheduling
        weight: 0
      - name: NodeNUMAResource
        weight: 0
      - name: DeviceShare
        weight: 0
      - name: Coscheduling
        weight: 0
      - name: ElasticQuota
        weight: 0
    score:
      enabled:
      - name: LoadAwareScheduling
        weight: 1
      - name: NodeNUMAResource
        weight: 1
      - name: DeviceShare
        weight: 1
      - name: Reservation
        weight: 5000
      - name: Coscheduling
        weight: 1
  schedulerName: koord-scheduler
{{- end }}
{{- end }}
{{- define "koord.deschedulerConfig" -}}
{{- with .Values.descheduler.config }}
{{- if kindIs "string" . }}{{ . }}{{ else }}{{ toYaml . }}{{ end }}
{{- else -}}
apiVersion: descheduler/v1alpha2
kind: DeschedulerConfiguration
leaderElection:
  leaderElect: true
  resourceLock: leases
  resourceName: koord-descheduler
  resourceNamespace: {{ include "koord.namespace" . }}
deschedulingInterval: 10s
profiles:
- name: koord-descheduler
  plugins:
    evict:
      enabled:
      - name: MigrationController
      disabled:
      - name: '*'
    filter:
      enabled:
      - name: MigrationController
      disabled:
      - name: '*'
  pluginConfig:
  - name: MigrationController
    args:
      apiVersion: descheduler/v1alpha2
      kind: MigrationControllerArgs
      evictionPolicy: Eviction
      evictQPS: '10'
      evictBurst: 1
      namespaces:
        exclude:
        - kube-system
        - {{ include "koord.namespace" . }}
  - name: LowNodeLoad
    args:
      apiVersion: descheduler/v1alpha2
      kind: LowNodeLoadArgs
      evictableNamespaces:
        exclude:
        - kube-system
        - {{ include "koord.namespace" . }}
      lowThresholds:
        cpu: 45
        memory: 55
      highThresholds:
        cpu: 75
        memory: 80
{{- if ne (int .Values.descheduler.port) 10251 }}
healthzBindAddress: 0.0.0.0:{{ .Values.descheduler.port }}
{{- end }}
{{- if ne (int .Values.descheduler.port) 10251 }}
metricsBindAddress: 0.0.0.0:{{ .Values.descheduler.port }}
{{- end }}
{{- end }}
{{- end }}
