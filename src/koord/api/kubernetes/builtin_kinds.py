"""This module is the table of Kubernetes' own kinds: how each is addressed and which model reads it.

Only what a server lists in discovery is here. Eviction and AdmissionReview are bodies of requests, not
stored kinds: import their models where they are used.
"""

from __future__ import annotations

from typing import Any, TypeVar

from koord.api.kubernetes import (
    admission,
    apiextensions,
    core_v1,
    dynamic_resources,
    events,
    node,
    pod,
    pod_policy,
    rbac,
    volume,
    workload,
)
from koord.api.kubernetes.meta import Object
from koord.api.kubernetes.resource import Resource

O = TypeVar("O", bound=Object)  # noqa: E741

APPS = "apps"
BATCH = "batch"
POLICY = "policy"
SCHEDULING = "scheduling.k8s.io"
NODE = "node.k8s.io"
STORAGE = "storage.k8s.io"
COORDINATION = "coordination.k8s.io"
RBAC = "rbac.authorization.k8s.io"
ADMISSION_REGISTRATION = "admissionregistration.k8s.io"
API_EXTENSIONS = "apiextensions.k8s.io"
EVENTS = "events.k8s.io"
RESOURCE = "resource.k8s.io"


def _v1(
    group: str, model: type[O], plural: str, *short_names: str, namespaced: bool = True, status: bool = False
) -> Resource[O]:
    """Make the entry of a built-in kind of v1."""
    return Resource.named_like_model(group, "v1", model, plural, short_names, namespaced=namespaced, status=status)


PODS = _v1("", pod.Pod, "pods", "po", status=True)
NODES = _v1("", node.Node, "nodes", "no", namespaced=False, status=True)
NAMESPACES = _v1("", core_v1.Namespace, "namespaces", "ns", namespaced=False, status=True)
CONFIG_MAPS = _v1("", core_v1.ConfigMap, "configmaps", "cm")
SECRETS = _v1("", core_v1.Secret, "secrets")
SERVICES = _v1("", core_v1.Service, "services", "svc", status=True)
SERVICE_ACCOUNTS = _v1("", core_v1.ServiceAccount, "serviceaccounts", "sa")
REPLICATION_CONTROLLERS = _v1("", core_v1.ReplicationController, "replicationcontrollers", "rc", status=True)
POD_TEMPLATES = _v1("", core_v1.PodTemplate, "podtemplates")
PERSISTENT_VOLUMES = _v1("", volume.PersistentVolume, "persistentvolumes", "pv", namespaced=False, status=True)
PERSISTENT_VOLUME_CLAIMS = _v1("", volume.PersistentVolumeClaim, "persistentvolumeclaims", "pvc", status=True)
CORE_EVENTS = _v1("", core_v1.Event, "events", "ev")
RESOURCE_QUOTAS = _v1("", core_v1.ResourceQuota, "resourcequotas", "quota", status=True)
LIMIT_RANGES = _v1("", core_v1.LimitRange, "limitranges", "limits")
BINDINGS = _v1("", pod.Binding, "bindings")

DEPLOYMENTS = _v1(APPS, workload.Deployment, "deployments", "deploy", status=True)
REPLICA_SETS = _v1(APPS, workload.ReplicaSet, "replicasets", "rs", status=True)
STATEFUL_SETS = _v1(APPS, workload.StatefulSet, "statefulsets", "sts", status=True)
DAEMON_SETS = _v1(APPS, workload.DaemonSet, "daemonsets", "ds", status=True)
CONTROLLER_REVISIONS = _v1(APPS, workload.ControllerRevision, "controllerrevisions")

JOBS = _v1(BATCH, workload.Job, "jobs", status=True)
CRON_JOBS = _v1(BATCH, workload.CronJob, "cronjobs", "cj", status=True)

POD_DISRUPTION_BUDGETS = _v1(POLICY, pod_policy.PodDisruptionBudget, "poddisruptionbudgets", "pdb", status=True)

PRIORITY_CLASSES = _v1(SCHEDULING, pod_policy.PriorityClass, "priorityclasses", "pc", namespaced=False)
RUNTIME_CLASSES = _v1(NODE, pod_policy.RuntimeClass, "runtimeclasses", namespaced=False)

STORAGE_CLASSES = _v1(STORAGE, volume.StorageClass, "storageclasses", "sc", namespaced=False)
CSI_NODES = _v1(STORAGE, volume.CSINode, "csinodes", namespaced=False)
CSI_DRIVERS = _v1(STORAGE, volume.CSIDriver, "csidrivers", namespaced=False)
CSI_STORAGE_CAPACITIES = _v1(STORAGE, volume.CSIStorageCapacity, "csistoragecapacities")
VOLUME_ATTACHMENTS = _v1(STORAGE, volume.VolumeAttachment, "volumeattachments", namespaced=False, status=True)

LEASES = _v1(COORDINATION, node.Lease, "leases")

ROLES = _v1(RBAC, rbac.Role, "roles")
CLUSTER_ROLES = _v1(RBAC, rbac.ClusterRole, "clusterroles", namespaced=False)
ROLE_BINDINGS = _v1(RBAC, rbac.RoleBinding, "rolebindings")
CLUSTER_ROLE_BINDINGS = _v1(RBAC, rbac.ClusterRoleBinding, "clusterrolebindings", namespaced=False)

MUTATING_WEBHOOK_CONFIGURATIONS = _v1(
    ADMISSION_REGISTRATION, admission.MutatingWebhookConfiguration, "mutatingwebhookconfigurations", namespaced=False
)
VALIDATING_WEBHOOK_CONFIGURATIONS = _v1(
    ADMISSION_REGISTRATION,
    admission.ValidatingWebhookConfiguration,
    "validatingwebhookconfigurations",
    namespaced=False,
)

CUSTOM_RESOURCE_DEFINITIONS = _v1(
    API_EXTENSIONS,
    apiextensions.CustomResourceDefinition,
    "customresourcedefinitions",
    "crd",
    "crds",
    namespaced=False,
    status=True,
)

EVENTS_EVENTS = _v1(EVENTS, events.Event, "events", "ev")

RESOURCE_CLAIMS = _v1(RESOURCE, dynamic_resources.ResourceClaim, "resourceclaims", status=True)
RESOURCE_CLAIM_TEMPLATES = _v1(RESOURCE, dynamic_resources.ResourceClaimTemplate, "resourceclaimtemplates")
DEVICE_CLASSES = _v1(RESOURCE, dynamic_resources.DeviceClass, "deviceclasses", namespaced=False)
RESOURCE_SLICES = _v1(RESOURCE, dynamic_resources.ResourceSlice, "resourceslices", namespaced=False)

# Order matters: where two groups share a name (events), the earlier one is meant when no group is given.
# All of the above, in their order.
BUILTIN_KINDS: tuple[Resource[Any], ...] = tuple(one for one in globals().values() if isinstance(one, Resource))
