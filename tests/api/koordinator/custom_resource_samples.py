"""This module holds objects that Koordinator's schemas accept and objects that they refuse, for offline and
real tests.
"""

from __future__ import annotations

import copy
from typing import Any

Obj = dict[str, Any]

USAGE: Obj = {"resources": {"cpu": "1250m", "memory": "2Gi", "example.com/raw": 3}}
MIG_REF: Obj = {"namespace": "default", "name": "web-0", "uid": "0b9a"}

VALID_OBJECTS: dict[str, Obj] = {
    "node-metric": {
        "apiVersion": "slo.koordinator.sh/v1alpha1",
        "kind": "NodeMetric",
        "metadata": {"name": "node-a"},
        "spec": {
            "metricCollectPolicy": {
                "aggregateDurationSeconds": 300,
                "reportIntervalSeconds": 60,
                "nodeAggregatePolicy": {"durations": ["5m0s", "10m0s", "30m0s"]},
                "nodeMemoryCollectPolicy": "usageWithPageCache",
            }
        },
        "status": {
            "updateTime": "2026-01-02T03:04:05Z",
            "nodeMetric": {
                "nodeUsage": {**USAGE, "devices": [{"type": "gpu", "minor": 0, "health": True}]},
                "aggregatedNodeUsages": [{"usage": {"avg": USAGE, "p95": USAGE}, "duration": "5m0s"}],
                "systemUsage": USAGE,
                "numaUsages": [{"numaNodeID": 0, "nodeUsage": USAGE, "systemUsage": USAGE}],
            },
            "podsMetric": [
                {
                    "name": "web-0",
                    "namespace": "default",
                    "podUsage": USAGE,
                    "priority": "koord-prod",
                    "qos": "LS",
                    "extensions": {"Object": {"vendor": {"deep": [1, "x", None]}}},
                }
            ],
            "hostApplicationMetric": [{"name": "nginx", "usage": USAGE, "priority": "koord-prod", "qos": "LS"}],
            "prodReclaimableMetric": {"resource": USAGE},
            "prodPeakMetric": {"resource": USAGE},
        },
    },
    "node-slo": {
        "apiVersion": "slo.koordinator.sh/v1alpha1",
        "kind": "NodeSLO",
        "metadata": {"name": "node-a"},
        "spec": {
            "resourceUsedThresholdWithBE": {
                "enable": True,
                "cpuSuppressThresholdPercent": 65,
                "cpuSuppressPolicy": "cpuset",
                "cpuEvictBESatisfactionUpperPercent": 80,
                "cpuEvictBESatisfactionLowerPercent": 60,
                "cpuEvictBEUsageThresholdPercent": 90,
                "memoryAllocatableEvictThresholdPercent": 110,
                "allocatableEvictPriorityThreshold": 7999,
            },
            "resourceQOSStrategy": {
                "policies": {"cpuPolicy": "coreSched", "netQOSPolicy": "terway-qos"},
                "lsClass": {
                    "cpuQOS": {"enable": True, "groupIdentity": 2, "schedIdle": 0, "coreExpeller": True},
                    "memoryQOS": {"enable": True, "wmarkMinAdj": -25, "pageCacheLimitSize": 1073741824},
                    "resctrlQOS": {"enable": True, "catRangeStartPercent": 0, "catRangeEndPercent": 100},
                    "networkQOS": {"enable": True, "ingressRequest": 10, "egressLimit": "100M"},
                },
                "cgroupRoot": {
                    "blkioQOS": {
                        "enable": True,
                        "blocks": [
                            {
                                "name": "/dev/vda",
                                "type": "device",
                                "ioCfg": {"readIOPS": 100, "ioWeightPercent": 60, "modelReadSeqIOPS": 1},
                            }
                        ],
                    }
                },
            },
            "cpuBurstStrategy": {"policy": "auto", "cpuBurstPercent": 1000, "cfsQuotaBurstPeriodSeconds": -1},
            "systemStrategy": {
                "memcgReapBackGround": 1,
                "schedFeatures": {"ID_IDLE_AVG": True},
                "totalNetworkBandwidth": "600M",
            },
            "hostApplications": [
                {
                    "name": "nginx",
                    "priority": "koord-prod",
                    "qos": "LS",
                    "cgroupPath": {"base": "CgroupRoot", "parentDir": "host-ls", "relativePath": "nginx"},
                    "strategy": {},
                }
            ],
            "extensions": {"Object": None},
        },
    },
    "device": {
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "Device",
        "metadata": {"name": "node-a", "labels": {"node.koordinator.sh/gpu-vendor": "nvidia"}},
        "spec": {
            "devices": [
                {
                    "type": "gpu",
                    "id": "GPU-1",
                    "minor": 0,
                    "moduleID": 1,
                    "health": True,
                    "resources": {"koordinator.sh/gpu-core": "100", "koordinator.sh/gpu-memory": "16Gi"},
                    "topology": {"socketID": -1, "nodeID": 0, "pcieID": "pci0000:00", "busID": "0000:00:08.0"},
                    "conditions": [
                        {
                            "type": "Healthy",
                            "status": "True",
                            "reason": "DeviceHealthy",
                            "message": "",
                            "lastTransitionTime": "2026-01-02T03:04:05Z",
                        }
                    ],
                },
                {
                    "type": "rdma",
                    "id": "0000:01:00.0",
                    "minor": 0,
                    "health": False,
                    "vfGroups": [{"labels": {"type": "general"}, "vfs": [{"minor": 0, "busID": "0000:01:00.2"}]}],
                },
            ]
        },
        "status": {
            "allocations": [
                {"type": "gpu", "entries": [{"name": "p", "namespace": "d", "uuid": "1", "minors": [0, 1]}]}
            ]
        },
    },
    "reservation": {
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "Reservation",
        "metadata": {"name": "hold"},
        "spec": {
            "template": {
                "metadata": {"namespace": "default"},
                "spec": {
                    "priority": 9000,
                    "containers": [{"name": "c", "resources": {"requests": {"cpu": 4}}}],
                    "anything": {"goes": ["here"]},
                },
            },
            "owners": [
                {"object": MIG_REF},
                {
                    "controller": {
                        "apiVersion": "apps/v1",
                        "kind": "ReplicaSet",
                        "name": "web-1",
                        "uid": "1",
                        "namespace": "default",
                        "controller": True,
                    }
                },
                {"labelSelector": {"matchExpressions": [{"key": "app", "operator": "In", "values": ["web"]}]}},
            ],
            "expires": "2030-01-02T03:04:05Z",
            "preAllocation": True,
            "preAllocationPolicy": {"mode": "Cluster", "enableMultiple": True},
            "allocatePolicy": "Restricted",
            "taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}],
        },
        "status": {
            "phase": "Available",
            "nodeName": "node-a",
            "conditions": [{"type": "Ready", "status": "True", "reason": "Available", "lastProbeTime": None}],
            "currentOwners": [MIG_REF],
            "allocatable": {"cpu": "4"},
            "allocated": {"cpu": "2"},
        },
    },
    "pod-migration-job": {
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "PodMigrationJob",
        "metadata": {"name": "move"},
        "spec": {
            "paused": False,
            "ttl": "5m0s",
            "mode": "EvictDirectly",
            "podRef": MIG_REF,
            "reservationOptions": {
                "reservationRef": {"name": "hold"},
                "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"owners": []}},
                "preemptionOptions": {},
            },
            "deleteOptions": {"gracePeriodSeconds": 30, "propagationPolicy": "Background"},
        },
        "status": {
            "phase": "Running",
            "status": "ReservationCreated",
            "preemptedPodsRef": [MIG_REF],
            "preemptedPodsReservation": [
                {
                    "name": "r",
                    "nodeName": "node-b",
                    "phase": "Available",
                    "preemptedPodRef": MIG_REF,
                    "podsRef": [MIG_REF],
                }
            ],
            "conditions": [
                {
                    "type": "Eviction",
                    "status": "False",
                    "lastProbeTime": None,
                    "lastTransitionTime": None,
                    "reason": "x",
                }
            ],
        },
    },
    "cluster-network-topology": {
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "ClusterNetworkTopology",
        "metadata": {"name": "default"},
        "spec": {
            "networkTopologySpec": [
                {"topologyLayer": "SpineLayer", "parentTopologyLayer": "ClusterTopologyLayer", "labelKey": ["spine"]},
                {"topologyLayer": "NodeTopologyLayer", "parentTopologyLayer": "SpineLayer"},
            ]
        },
        "status": {
            "detailStatus": [
                {
                    "topologyInfo": {"topologyLayer": "SpineLayer", "topologyName": "s1"},
                    "parentTopologyInfo": {"topologyLayer": "ClusterTopologyLayer", "topologyName": ""},
                    "childTopologyLayer": "NodeTopologyLayer",
                    "childTopologyNames": ["node-a"],
                    "nodeNum": 1,
                }
            ]
        },
    },
    "schedule-explanation": {
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "ScheduleExplanation",
        "metadata": {"name": "why", "namespace": "default"},
        "spec": {"questionObjectKey": "default/web-0", "questionObjectTemplate": {"spec": {"x": 1}}},
        "status": {
            "schedulable": False,
            "failedMessage": "0/1 nodes are available",
            "lastUpdateTime": None,
            "detailedExplanation": [
                {
                    "topologyDomain": "zone-a",
                    "scheduleExplanation": {
                        "feasibleSchedulingResult": [{"namespace": "d", "name": "p", "uid": "1", "nodeName": "n"}],
                        "nodeFailedDetails": [
                            {"failedPlugin": "F", "reason": "r", "preemptMightHelp": True, "failedNodes": ["n"]}
                        ],
                    },
                    "nodePossibleVictims": [
                        {"nodeName": "n", "possibleVictims": [{"name": "p", "isNominatedPod": True}]}
                    ],
                }
            ],
        },
    },
    "elastic-quota": {
        "apiVersion": "scheduling.sigs.k8s.io/v1alpha1",
        "kind": "ElasticQuota",
        "metadata": {"name": "team", "namespace": "default"},
        "spec": {"min": {"cpu": 10, "memory": "20Gi"}, "max": {"cpu": "40", "memory": "40Gi"}},
        "status": {"used": {"cpu": "0"}},
    },
    "pod-group": {
        "apiVersion": "scheduling.sigs.k8s.io/v1alpha1",
        "kind": "PodGroup",
        "metadata": {"name": "gang", "namespace": "default"},
        "spec": {"minMember": 3, "minResources": {"cpu": "3"}, "scheduleTimeoutSeconds": 60},
        "status": {"phase": "Pending", "scheduleStartTime": None, "running": 1, "occupiedBy": "a/b"},
    },
    "elastic-quota-profile": {
        "apiVersion": "quota.koordinator.sh/v1alpha1",
        "kind": "ElasticQuotaProfile",
        "metadata": {"name": "pool", "namespace": "default"},
        "spec": {
            "quotaName": "pool-root",
            "quotaLabels": {"a": "b"},
            "resourceRatio": "0.9",
            "nodeSelector": {"matchLabels": {"pool": "a"}},
        },
        "status": {},
    },
    "cluster-colocation-profile": {
        "apiVersion": "config.koordinator.sh/v1alpha1",
        "kind": "ClusterColocationProfile",
        "metadata": {"name": "batch"},
        "spec": {
            "namespaceSelector": {"matchLabels": {"colocation": "true"}},
            "selector": {},
            "probability": "50%",
            "qosClass": "BE",
            "priorityClassName": "koord-batch",
            "koordinatorPriority": 1000,
            "labels": {"a": "b"},
            "annotationKeysMapping": {"from": "to"},
            "labelSuffixes": {"app": "-colo"},
            "schedulerName": "koord-scheduler",
            "patch": {"spec": {"terminationGracePeriodSeconds": 30}},
        },
    },
    "recommendation": {
        "apiVersion": "analysis.koordinator.sh/v1alpha1",
        "kind": "Recommendation",
        "metadata": {"name": "size", "namespace": "default"},
        "spec": {
            "target": {"type": "workload", "workload": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "w"}}
        },
        "status": {
            "podStatus": {"containerStatuses": [{"containerName": "c", "resources": {"cpu": "100m"}}]},
            "updateTime": "2026-01-02T03:04:05Z",
        },
    },
    "node-resource-topology-v1alpha1": {
        "apiVersion": "topology.node.k8s.io/v1alpha1",
        "kind": "NodeResourceTopology",
        "metadata": {"name": "node-a"},
        "topologyPolicies": ["None"],
        "zones": [
            {
                "name": "node-0",
                "type": "Node",
                "costs": [{"name": "node-0", "value": 10}],
                "attributes": [{"name": "a", "value": "b"}],
                "resources": [{"name": "cpu", "capacity": "4", "allocatable": 4, "available": "3500m"}],
            }
        ],
    },
    "node-resource-topology-v1alpha2": {
        "apiVersion": "topology.node.k8s.io/v1alpha2",
        "kind": "NodeResourceTopology",
        "metadata": {"name": "node-b"},
        "zones": [],
        "attributes": [{"name": "policy", "value": "none"}],
    },
}


def _changed(sample: str, path: str, value: Any = None, *, drop: bool = False) -> Obj:
    made = copy.deepcopy(VALID_OBJECTS[sample])
    at: Any = made
    *parents, last = [int(p) if p.isdigit() else p for p in path.split("/")]
    for step in parents:
        at = at[step]
    if drop:
        del at[last]
    else:
        at[last] = value
    return made


# name -> (object, the field that the refusal must name)
INVALID_OBJECTS: dict[str, tuple[Obj, str]] = {
    "unknown-memory-policy": (
        _changed("node-metric", "spec/metricCollectPolicy/nodeMemoryCollectPolicy", "rss"),
        "spec.metricCollectPolicy.nodeMemoryCollectPolicy",
    ),
    "duration-as-number": (
        _changed("node-metric", "spec/metricCollectPolicy/nodeAggregatePolicy/durations/0", 5),
        "spec.metricCollectPolicy.nodeAggregatePolicy.durations[0]",
    ),
    "percent-over-hundred": (
        _changed("node-slo", "spec/resourceUsedThresholdWithBE/cpuSuppressThresholdPercent", 101),
        "spec.resourceUsedThresholdWithBE.cpuSuppressThresholdPercent",
    ),
    "identity-below-range": (
        _changed("node-slo", "spec/resourceQOSStrategy/lsClass/cpuQOS/groupIdentity", -2),
        "spec.resourceQOSStrategy.lsClass.cpuQOS.groupIdentity",
    ),
    "prod-priority-threshold": (
        _changed("node-slo", "spec/resourceUsedThresholdWithBE/allocatableEvictPriorityThreshold", 8000),
        "spec.resourceUsedThresholdWithBE.allocatableEvictPriorityThreshold",
    ),
    "bad-bandwidth": (
        _changed("node-slo", "spec/systemStrategy/totalNetworkBandwidth", "ten"),
        "spec.systemStrategy.totalNetworkBandwidth",
    ),
    "network-percent-as-object": (
        _changed("node-slo", "spec/resourceQOSStrategy/lsClass/networkQOS/ingressRequest", {"percent": 1}),
        "spec.resourceQOSStrategy.lsClass.networkQOS.ingressRequest",
    ),
    "device-minor-as-text": (_changed("device", "spec/devices/0/minor", "0"), "spec.devices[0].minor"),
    "device-topology-without-pcie": (
        _changed("device", "spec/devices/0/topology/pcieID", drop=True),
        "spec.devices[0].topology.pcieID",
    ),
    "reservation-without-template": (_changed("reservation", "spec/template", drop=True), "spec.template"),
    "reservation-without-owners": (_changed("reservation", "spec/owners", []), "spec.owners"),
    "reservation-bad-policy": (_changed("reservation", "spec/allocatePolicy", "Loose"), "spec.allocatePolicy"),
    "reservation-bad-mode": (
        _changed("reservation", "spec/preAllocationPolicy/mode", "Node"),
        "spec.preAllocationPolicy.mode",
    ),
    "reservation-owner-controller-without-uid": (
        _changed("reservation", "spec/owners/1/controller/uid", drop=True),
        "spec.owners[1].controller.uid",
    ),
    "reservation-taint-without-effect": (
        _changed("reservation", "spec/taints/0/effect", drop=True),
        "spec.taints[0].effect",
    ),
    "migration-without-pod": (_changed("pod-migration-job", "spec/podRef", drop=True), "spec.podRef"),
    "topology-without-layers": (
        _changed("cluster-network-topology", "spec/networkTopologySpec", drop=True),
        "spec.networkTopologySpec",
    ),
    "explanation-ttl-as-number": (_changed("schedule-explanation", "spec/ttl", 5), "spec.ttl"),
    "quota-bad-quantity": (_changed("elastic-quota", "spec/min/memory", "20GiB"), "spec.min.memory"),
    "gang-size-as-text": (_changed("pod-group", "spec/minMember", "3"), "spec.minMember"),
    "profile-without-selector": (
        _changed("elastic-quota-profile", "spec/nodeSelector", drop=True),
        "spec.nodeSelector",
    ),
    "profile-without-name": (_changed("elastic-quota-profile", "spec/quotaName", drop=True), "spec.quotaName"),
    "colocation-empty-qos": (_changed("cluster-colocation-profile", "spec/qosClass", ""), "spec.qosClass"),
    "recommendation-bad-target": (_changed("recommendation", "spec/target/type", "pod"), "spec.target.type"),
    "recommendation-without-target": (_changed("recommendation", "spec/target", drop=True), "spec.target"),
    "topology-v1alpha1-without-policies": (
        _changed("node-resource-topology-v1alpha1", "topologyPolicies", drop=True),
        "topologyPolicies",
    ),
    "zone-without-type": (
        _changed("node-resource-topology-v1alpha1", "zones/0/type", drop=True),
        "zones[0].type",
    ),
    "topology-without-zones": (_changed("node-resource-topology-v1alpha2", "zones", drop=True), "zones"),
}
