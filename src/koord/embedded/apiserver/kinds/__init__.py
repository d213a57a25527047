"""This table maps the group and kind of every built-in kind with rules of its own to its strategy.

Any other built-in kind accepts whatever fits its schema.
"""

from __future__ import annotations

from collections.abc import Mapping

from koord.embedded.apiserver.kinds import (
    apps,
    batch,
    config,
    coordination,
    daemon,
    event,
    light,
    node,
    policy,
    quota,
    rbac,
    service,
    stateful,
    storage,
    volume,
    webhook,
)
from koord.embedded.apiserver.kinds.pod import POD
from koord.embedded.apiserver.kinds.strategy import Strategy

_CORE = {
    "ConfigMap": config.CONFIG_MAP,
    "Endpoints": light.ENDPOINTS,
    "Event": event.CORE_EVENT,
    "LimitRange": quota.LIMIT_RANGE,
    "Namespace": node.NAMESPACE,
    "Node": node.NODE,
    "PersistentVolume": volume.PERSISTENT_VOLUME,
    "PersistentVolumeClaim": storage.PERSISTENT_VOLUME_CLAIM,
    "Pod": POD,
    "PodTemplate": apps.POD_TEMPLATE,
    "ReplicationController": apps.REPLICATION_CONTROLLER,
    "ResourceQuota": quota.RESOURCE_QUOTA,
    "Secret": config.SECRET,
    "Service": service.SERVICE,
}
_STORAGE = {
    "CSIDriver": storage.CSI_DRIVER,
    "CSINode": storage.CSI_NODE,
    "CSIStorageCapacity": storage.CSI_STORAGE_CAPACITY,
    "StorageClass": storage.STORAGE_CLASS,
    "VolumeAttachment": storage.VOLUME_ATTACHMENT,
}
_RESOURCE = {
    "DeviceClass": light.DEVICE_CLASS,
    "ResourceClaim": light.RESOURCE_CLAIM,
    "ResourceClaimTemplate": light.RESOURCE_CLAIM_TEMPLATE,
    "ResourceSlice": light.RESOURCE_SLICE,
}
_RBAC = {
    "ClusterRole": rbac.CLUSTER_ROLE,
    "ClusterRoleBinding": rbac.CLUSTER_ROLE_BINDING,
    "Role": rbac.ROLE,
    "RoleBinding": rbac.ROLE_BINDING,
}
_GROUPS: Mapping[str, Mapping[str, Strategy]] = {
    "": _CORE,
    "admissionregistration.k8s.io": {
        "MutatingWebhookConfiguration": webhook.MUTATING,
        "ValidatingWebhookConfiguration": webhook.VALIDATING,
    },
    "apiregistration.k8s.io": {"APIService": light.API_SERVICE},
    "apps": {
        "ControllerRevision": apps.CONTROLLER_REVISION,
        "DaemonSet": daemon.DAEMON_SET,
        "Deployment": apps.DEPLOYMENT,
        "ReplicaSet": apps.REPLICA_SET,
        "StatefulSet": stateful.STATEFUL_SET,
    },
    "autoscaling": {"HorizontalPodAutoscaler": light.AUTOSCALER},
    "batch": {"CronJob": batch.CRON_JOB, "Job": batch.JOB},
    "coordination.k8s.io": {"Lease": coordination.LEASE},
    "discovery.k8s.io": {"EndpointSlice": light.ENDPOINT_SLICE},
    "events.k8s.io": {"Event": event.NEW_EVENT},
    "networking.k8s.io": {
        "Ingress": light.INGRESS,
        "IngressClass": light.INGRESS_CLASS,
        "NetworkPolicy": light.NETWORK_POLICY,
    },
    "node.k8s.io": {"RuntimeClass": coordination.RUNTIME_CLASS},
    "policy": {"PodDisruptionBudget": policy.POD_DISRUPTION_BUDGET},
    "rbac.authorization.k8s.io": _RBAC,
    "resource.k8s.io": _RESOURCE,
    "scheduling.k8s.io": {"PriorityClass": coordination.PRIORITY_CLASS},
    "storage.k8s.io": _STORAGE,
}

STRATEGIES: Mapping[tuple[str, str], Strategy] = {
    (group, kind): strategy for group, kinds in _GROUPS.items() for kind, strategy in kinds.items()
}
