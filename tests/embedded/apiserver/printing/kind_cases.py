"""These YAML objects cover the other kinds that people list in tables: the object and its later status."""

from __future__ import annotations

from typing import Any

import yaml

# A time written as "-90s" is put that long before the moment of the freeze.
CASES = """
apiVersion: v1
kind: Node
metadata: {name: "{ns}-plain"}
---
apiVersion: v1
kind: Node
metadata:
  name: "{ns}-ready"
  labels: {node-role.kubernetes.io/worker: "", node-role.kubernetes.io/control-plane: "", kubernetes.io/role: edge}
status:
  conditions: [{type: Ready, status: "True"}]
  nodeInfo: &info
    {kubeletVersion: v1.35.1, osImage: Linux 6, kernelVersion: "6.1", containerRuntimeVersion: "containerd://2",
     machineID: "", systemUUID: "", bootID: "", kubeProxyVersion: "", operatingSystem: linux, architecture: amd64}
  addresses: [{type: InternalIP, address: 10.0.0.1}, {type: ExternalIP, address: 1.2.3.4}, {type: Hostname, address: h}]
---
apiVersion: v1
kind: Node
metadata: {name: "{ns}-cordoned"}
spec: {unschedulable: true}
status: {conditions: [{type: Ready, status: "False"}], nodeInfo: *info}
---
apiVersion: v1
kind: Node
metadata: {name: "{ns}-silent"}
status: {conditions: [{type: Ready, status: Unknown}, {type: MemoryPressure, status: "False"}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: deployed}
spec: &workload
  replicas: 3
  selector:
    matchLabels: {app: a, tier: web}
    matchExpressions: [{key: zone, operator: In, values: [b, a]}, {key: old, operator: DoesNotExist}]
  template:
    metadata: {labels: {app: a, tier: web, zone: a}}
    spec: {containers: [{name: one, image: "example/one:1"}, {name: two, image: "example/two:2"}]}
status: {replicas: 3, updatedReplicas: 2, readyReplicas: 1, availableReplicas: 1}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: asleep}
spec: {<<: *workload, replicas: 0}
---
apiVersion: apps/v1
kind: ReplicaSet
metadata: {name: set}
spec: *workload
status: {replicas: 3, readyReplicas: 2, availableReplicas: 1, fullyLabeledReplicas: 3}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: state}
spec: {<<: *workload, serviceName: s}
status: {replicas: 3, readyReplicas: 2, currentReplicas: 1, updatedReplicas: 1}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: everywhere}
spec:
  selector: {matchLabels: {app: d}}
  template:
    metadata: {labels: {app: d}}
    spec: {nodeSelector: {disk: ssd, arch: arm}, containers: [{name: one, image: "example/one:1"}]}
status:
  {desiredNumberScheduled: 5, currentNumberScheduled: 4, numberReady: 3, updatedNumberScheduled: 2, numberAvailable: 1,
   numberMisscheduled: 0}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: nowhere-special}
spec:
  selector: {matchLabels: {app: d}}
  template: {metadata: {labels: {app: d}}, spec: {containers: [{name: one, image: "example/one:1"}]}}
---
apiVersion: apps/v1
kind: ControllerRevision
metadata:
  name: revision
  ownerReferences:
    [{apiVersion: apps/v1, kind: StatefulSet, name: state, uid: 4a8d2a1e-7f6e-4a52-9d35-0c6a1b3f4e11, controller: true}]
revision: 7
data: {}
---
apiVersion: apps/v1
kind: ControllerRevision
metadata: {name: unowned}
revision: 1
data: {}
---
apiVersion: v1
kind: ReplicationController
metadata: {name: old}
spec:
  replicas: 2
  selector: {app: r, b: c}
  template: {metadata: {labels: {app: r, b: c}}, spec: {containers: [{name: one, image: "example/one:1"}]}}
status: {replicas: 2, readyReplicas: 1}
---
apiVersion: v1
kind: PodTemplate
metadata: {name: template}
template: {metadata: {labels: {app: r, b: c}}, spec: {containers: [{name: one, image: "example/one:1"}]}}
---
apiVersion: batch/v1
kind: Job
metadata: {name: fresh}
spec: &job {template: {spec: {restartPolicy: Never, containers: [{name: one, image: "example/one:1"}]}}}
---
apiVersion: batch/v1
kind: Job
metadata: {name: running}
spec: {<<: *job, completions: 5, parallelism: 2}
status: {startTime: "-100s", active: 2, succeeded: 3}
---
apiVersion: batch/v1
kind: Job
metadata: {name: done}
spec: *job
status:
  startTime: "-1000s"
  completionTime: "-400s"
  succeeded: 1
  conditions: &done
    - {type: SuccessCriteriaMet, status: "True", lastTransitionTime: "-400s"}
    - {type: Complete, status: "True", lastTransitionTime: "-400s"}
---
apiVersion: batch/v1
kind: Job
metadata: {name: failed}
spec: *job
status:
  startTime: "-1000s"
  failed: 1
  conditions:
    - {type: FailureTarget, status: "True", lastTransitionTime: "-400s"}
    - {type: Failed, status: "True", lastTransitionTime: "-400s"}
---
apiVersion: batch/v1
kind: Job
metadata: {name: failing}
spec: *job
status: {startTime: "-1000s", active: 1, conditions: [{type: FailureTarget, status: "True", lastTransitionTime: "-4s"}]}
---
apiVersion: batch/v1
kind: Job
metadata: {name: succeeding}
spec: *job
status:
  startTime: "-1000s"
  active: 1
  conditions: [{type: SuccessCriteriaMet, status: "True", lastTransitionTime: "-4s"}]
---
apiVersion: batch/v1
kind: Job
metadata: {name: suspended}
spec: {<<: *job, suspend: true}
status: {conditions: [{type: Suspended, status: "True", lastTransitionTime: "-40s"}]}
---
apiVersion: batch/v1
kind: Job
metadata: {name: dying, finalizers: [example.com/stay]}
spec: *job
---
apiVersion: batch/v1
kind: Job
metadata: {name: queue}
spec: {<<: *job, parallelism: 3}
status: {startTime: "-100000s", active: 3, succeeded: 0}
---
apiVersion: batch/v1
kind: CronJob
metadata: {name: every-minute}
spec: &cron
  schedule: "* * * * *"
  jobTemplate: {spec: {template: {spec: {restartPolicy: Never, containers: [{name: one, image: "example/one:1"}]}}}}
status: {lastScheduleTime: "-100s", active: [{kind: Job, name: a, namespace: x}]}
---
apiVersion: batch/v1
kind: CronJob
metadata: {name: paused}
spec: {<<: *cron, suspend: true, timeZone: Etc/UTC}
---
apiVersion: v1
kind: Service
metadata: {name: inside}
spec: {clusterIP: None, selector: {app: a, b: c}, ports: [{name: x, port: 80}, {name: y, port: 53, protocol: UDP}]}
---
apiVersion: v1
kind: Service
metadata: {name: noded}
spec: {type: NodePort, clusterIP: 10.96.77.1, ports: [{port: 80, nodePort: 31777}], externalIPs: [1.1.1.1, 2.2.2.2]}
---
apiVersion: v1
kind: Service
metadata: {name: balanced}
spec: {type: LoadBalancer, clusterIP: 10.96.77.2, ports: [{port: 80, nodePort: 31778}], externalIPs: [9.9.9.9]}
status: {loadBalancer: {ingress: [{ip: 5.5.5.5, ipMode: VIP}, {hostname: a-very-long-name.balancer.example.com}]}}
---
apiVersion: v1
kind: Service
metadata: {name: pending}
spec: {type: LoadBalancer, clusterIP: 10.96.77.3, ports: [{port: 80, nodePort: 31779}]}
---
apiVersion: v1
kind: Service
metadata: {name: outside}
spec: {type: ExternalName, externalName: example.com}
---
apiVersion: v1
kind: Endpoints
metadata: {name: ends}
subsets:
  - addresses: [{ip: 10.9.0.1}, {ip: 10.9.0.2}]
    ports: [{name: a, port: 80}, {name: b, port: 81}]
  - {notReadyAddresses: [{ip: 10.9.0.3}], ports: [{port: 90}]}
---
apiVersion: v1
kind: Endpoints
metadata: {name: no-ends}
---
apiVersion: v1
kind: Endpoints
metadata: {name: no-ports}
subsets: [{addresses: [{ip: 10.9.0.1}]}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: slice}
addressType: IPv4
endpoints:
  [{addresses: [10.9.0.1, 10.9.0.9]}, {addresses: [10.9.0.2]}, {addresses: [10.9.0.3]}, {addresses: [10.9.0.4]}]
ports: [{name: a, port: 80, protocol: TCP}, {name: b, port: 81, protocol: TCP}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: bare}
addressType: IPv6
endpoints: []
---
apiVersion: v1
kind: ConfigMap
metadata: {name: cm}
data: {a: "1", b: "2"}
binaryData: {c: AAAA}
---
apiVersion: v1
kind: Secret
metadata: {name: secret}
stringData: {a: "1"}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: account}
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: "{ns}-pv"}
spec:
  {capacity: {storage: 1Gi}, accessModes: [ReadWriteOnce, ReadOnlyMany, ReadWriteMany], hostPath: {path: /x},
   storageClassName: fast, claimRef: {namespace: a, name: b}, persistentVolumeReclaimPolicy: Delete}
status: {phase: Failed, reason: Why}
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: "{ns}-dying", finalizers: [example.com/stay]}
spec: {capacity: {storage: 1500Mi}, accessModes: [ReadWriteOncePod], hostPath: {path: /x}, volumeMode: Block}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: claim}
spec:
  {accessModes: [ReadWriteOnce], storageClassName: fast, volumeName: v, resources: {requests: {storage: 1Gi}},
   volumeMode: Filesystem}
status: {phase: Bound, accessModes: [ReadWriteOnce, ReadWriteMany], capacity: {storage: 2Gi}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: unbound}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: dying, finalizers: [example.com/stay]}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: "{ns}-plain"}
provisioner: example.com/p
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: "{ns}-grown", annotations: {storageclass.kubernetes.io/is-default-class: "true"}}
provisioner: example.com/p
allowVolumeExpansion: true
reclaimPolicy: Retain
volumeBindingMode: WaitForFirstConsumer
---
apiVersion: storage.k8s.io/v1
kind: CSINode
metadata: {name: "{ns}-csi"}
spec: {drivers: [{name: d.example.com, nodeID: x}]}
---
apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {name: "{ns}-driver"}
spec:
  {attachRequired: false, volumeLifecycleModes: [Persistent, Ephemeral], storageCapacity: true,
   tokenRequests: [{audience: a}, {audience: b}]}
---
apiVersion: storage.k8s.io/v1
kind: CSIStorageCapacity
metadata: {name: capacity}
storageClassName: fast
---
apiVersion: storage.k8s.io/v1
kind: VolumeAttachment
metadata: {name: "{ns}-attached"}
spec: {attacher: a.example.com, nodeName: n1, source: {persistentVolumeName: pv1}}
status: {attached: true}
---
apiVersion: storage.k8s.io/v1
kind: VolumeAttributesClass
metadata: {name: "{ns}-vac"}
driverName: d.example.com
parameters: {a: b}
---
apiVersion: coordination.k8s.io/v1
kind: Lease
metadata: {name: held}
spec: {holderIdentity: me}
---
apiVersion: coordination.k8s.io/v1
kind: Lease
metadata: {name: free}
---
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: "{ns}-pc"}
value: 100
preemptionPolicy: Never
---
apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata: {name: "{ns}-rc"}
handler: h
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: number}
spec: {minAvailable: 2, selector: {matchLabels: {a: b}}}
status: {disruptionsAllowed: 1, currentHealthy: 3, desiredHealthy: 2, expectedPods: 3, observedGeneration: 1}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: percent}
spec: {maxUnavailable: 30%, selector: {matchLabels: {a: b}}}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: nothing}
spec: {selector: {matchLabels: {a: b}}}
---
apiVersion: v1
kind: ResourceQuota
metadata: {name: quota}
spec: {hard: {requests.cpu: "4", limits.memory: 8Gi, pods: "10", cpu: 3500m}}
status:
  hard: {requests.cpu: "4", limits.memory: 8Gi, pods: "10", cpu: 3500m}
  used: {requests.cpu: 500m, limits.memory: 1Gi, pods: "3"}
---
apiVersion: v1
kind: LimitRange
metadata: {name: limits}
spec: {limits: [{type: Container, max: {cpu: "1"}}]}
---
apiVersion: v1
kind: Event
metadata: {name: plain}
involvedObject: {kind: Pod, name: p, namespace: "{ns}", fieldPath: "spec.containers{c}"}
type: Normal
reason: Started
message: "  Started it\\nwell "
source: {component: kubelet, host: n1}
firstTimestamp: "-600s"
lastTimestamp: "-90s"
count: 4
---
apiVersion: v1
kind: Event
metadata: {name: series}
involvedObject: {kind: Pod, name: p, namespace: "{ns}"}
type: Warning
reason: Again
message: again
reportingComponent: koord
reportingInstance: k1
eventTime: "-500s."
series: {count: 9, lastObservedTime: "-20s."}
action: Do
---
apiVersion: v1
kind: Event
metadata: {name: single}
involvedObject: {kind: Node, name: n, namespace: "{ns}"}
type: Normal
reason: Once
message: once
reportingComponent: koord
reportingInstance: k1
eventTime: "-50s."
action: Do
---
apiVersion: v1
kind: Event
metadata: {name: timeless}
involvedObject: {kind: Node, name: n, namespace: "{ns}"}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: role}
rules: [{apiGroups: [""], resources: [pods], verbs: [get]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: binding}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: role}
subjects:
  - {kind: User, apiGroup: rbac.authorization.k8s.io, name: u1}
  - {kind: User, apiGroup: rbac.authorization.k8s.io, name: u2}
  - {kind: Group, apiGroup: rbac.authorization.k8s.io, name: g}
  - {kind: ServiceAccount, name: a, namespace: n}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: "{ns}-role"}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: "{ns}-binding"}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: role}
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata: {name: "{ns}-mutating"}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: "{ns}-validating"}
webhooks:
  - {name: a.example.com, clientConfig: {url: "https://example.com"}, sideEffects: None, admissionReviewVersions: [v1],
     rules: []}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: "things.{ns}.example.com"}
spec:
  group: "{ns}.example.com"
  scope: Cluster
  names: {plural: things, kind: Thing}
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: "v1.{ns}.example.org"}
spec:
  {group: "{ns}.example.org", version: v1, groupPriorityMinimum: 100, versionPriority: 10, insecureSkipTLSVerify: true,
   service: {namespace: default, name: absent}}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: silent}
spec: &hpa {maxReplicas: 5, scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: d}}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: many}
spec:
  <<: *hpa
  minReplicas: 2
  metrics:
    - {type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 80}}}
    - {type: Resource, resource: {name: memory, target: {type: AverageValue, averageValue: 1Gi}}}
    - {type: Pods, pods: {metric: {name: qps}, target: {type: AverageValue, averageValue: "10"}}}
    - {type: External, external: {metric: {name: q}, target: {type: Value, value: "7"}}}
status:
  currentReplicas: 3
  desiredReplicas: 4
  currentMetrics:
    - {type: Resource, resource: {name: cpu, current: {averageUtilization: 40, averageValue: 100m}}}
    - {type: Resource, resource: {name: memory, current: {averageValue: 500Mi}}}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: objects}
spec:
  <<: *hpa
  metrics:
    - type: Object
      object: {describedObject: {kind: Service, name: s}, metric: {name: m}, target: {type: Value, value: "5"}}
    - {type: External, external: {metric: {name: q}, target: {type: AverageValue, averageValue: 700m}}}
    - type: ContainerResource
      containerResource: {name: cpu, container: c, target: {type: Utilization, averageUtilization: 60}}
status:
  currentReplicas: 1
  desiredReplicas: 1
  currentMetrics:
    - {type: Object, object: {describedObject: {kind: Service, name: s}, metric: {name: m}, current: {value: "3"}}}
    - {type: External, external: {metric: {name: q}, current: {averageValue: 300m}}}
    - {type: ContainerResource, containerResource: {name: cpu, container: c, current: {averageUtilization: 30}}}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: hosted}
spec:
  ingressClassName: nginx
  tls: [{hosts: [a.example.com]}]
  rules:
    - &rule
      host: a.example.com
      http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: s, port: {number: 80}}}}]}
    - {<<: *rule, host: b.example.com}
    - {<<: *rule, host: c.example.com}
    - {<<: *rule, host: d.example.com}
status: {loadBalancer: {ingress: [{ip: 1.2.3.4}, {hostname: lb.example.com}]}}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: default-backend}
spec: {defaultBackend: {service: {name: s, port: {number: 80}}}}
---
apiVersion: networking.k8s.io/v1
kind: IngressClass
metadata: {name: "{ns}-class"}
spec: {controller: example.com/c, parameters: {apiGroup: example.com, kind: P, name: p, scope: Cluster}}
---
apiVersion: networking.k8s.io/v1
kind: IngressClass
metadata: {name: "{ns}-bare"}
spec: {controller: example.com/c}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: open}
spec: {podSelector: {}}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: narrow}
spec: {podSelector: {matchLabels: {a: b}, matchExpressions: [{key: c, operator: Exists}]}}
---
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: "{ns}-class"}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: wanted}
spec: {devices: {requests: [{name: a, exactly: {deviceClassName: gpu}}]}}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: template}
spec: {spec: {devices: {requests: [{name: a, exactly: {deviceClassName: gpu}}]}}}
---
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: "{ns}-slice"}
spec: {nodeName: n1, driver: d.example.com, pool: {name: pool, generation: 1, resourceSliceCount: 1}, devices: []}
---
apiVersion: flowcontrol.apiserver.k8s.io/v1
kind: FlowSchema
metadata: {name: "{ns}-flow"}
spec: {priorityLevelConfiguration: {name: exempt}, matchingPrecedence: 100, distinguisherMethod: {type: ByUser}}
---
apiVersion: flowcontrol.apiserver.k8s.io/v1
kind: FlowSchema
metadata: {name: "{ns}-lost"}
spec: {priorityLevelConfiguration: {name: absent}}
---
apiVersion: flowcontrol.apiserver.k8s.io/v1
kind: PriorityLevelConfiguration
metadata: {name: "{ns}-level"}
spec:
  type: Limited
  limited:
    nominalConcurrencyShares: 5
    limitResponse: {type: Queue, queuing: {queues: 4, handSize: 2, queueLengthLimit: 9}}
---
apiVersion: flowcontrol.apiserver.k8s.io/v1
kind: PriorityLevelConfiguration
metadata: {name: "{ns}-reject"}
spec: {type: Limited, limited: {limitResponse: {type: Reject}}}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: "{ns}-policy"}
spec:
  paramKind: {apiVersion: v1, kind: ConfigMap}
  validations: [{expression: "true"}]
  matchConstraints:
    resourceRules: [{apiGroups: [example.com], apiVersions: [v1], operations: [CREATE], resources: [x]}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: "{ns}-binding"}
spec: {policyName: p, validationActions: [Deny], paramRef: {name: n, namespace: m, parameterNotFoundAction: Deny}}
---
apiVersion: v1
kind: Namespace
metadata: {name: "{ns}-other"}
"""


def cases() -> list[dict[str, Any]]:
    """Return all cases; they are one YAML list, because an anchor ends with its document."""
    parts = [part.strip("\n").replace("\n", "\n  ") for part in CASES.split("---\n")]
    loaded: list[dict[str, Any]] = yaml.safe_load("\n".join(f"- {part}" for part in parts))
    return loaded
