"""Objects that a real API server returned, read through the models."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from koord.api.koordinator.custom_kinds import KINDS_BY_API_VERSION
from koord.api.kubernetes.admission import AdmissionResponse, AdmissionReview, ValidatingWebhookConfiguration
from koord.api.kubernetes.dynamic_resources import ResourceClaim
from koord.api.kubernetes.node import Lease, Node
from koord.api.kubernetes.pod import Pod, PodTemplateSpec
from koord.api.kubernetes.pod_policy import PodDisruptionBudget, PriorityClass, RuntimeClass
from koord.api.kubernetes.rbac import ClusterRole
from koord.api.kubernetes.volume import CSINode, PersistentVolume, PersistentVolumeClaim, StorageClass
from koord.api.kubernetes.workload import CronJob, Deployment, Job, JobSpec, StatefulSet
from koord.api.model import convert, encode, to_dict
from tests.api.kubernetes.real_objects import names, raw, read

T0 = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def test_pod_spec_for_placement() -> None:
    spec = read("pod", Pod).spec
    assert (spec.priority, spec.priority_class_name, spec.preemption_policy) == (9000, "api-models-high", "Never")
    assert spec.node_selector == {"disk": "ssd", "kata": "yes"}
    assert spec.overhead == {"cpu": "250m", "memory": "120Mi"}
    assert spec.scheduling_gates[0].name == "example.com/wait"
    assert spec.readiness_gates[0].condition_type == "example.com/ready"
    assert spec.resource_claims[0].resource_claim_name == "gpu"
    assert spec.host_network
    assert not spec.host_pid
    assert spec.termination_grace_period_seconds == 7
    assert spec.resources is not None
    assert spec.resources.requests == {"cpu": "3", "memory": "2Gi"}
    assert [t.key for t in spec.tolerations] == [
        "dedicated",
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unreachable",
        "kata",
    ]
    assert spec.tolerations[0].toleration_seconds == 30
    assert spec.tolerations[3].toleration_seconds is None


def test_pod_affinity_and_spread() -> None:
    spec = read("pod", Pod).spec
    assert spec.affinity is not None
    assert spec.affinity.node_affinity is not None
    assert spec.affinity.pod_affinity is None
    required = spec.affinity.node_affinity.required_during_scheduling_ignored_during_execution
    assert required is not None
    (term,) = required.node_selector_terms
    assert (term.match_expressions[0].operator, term.match_expressions[0].values) == ("Gt", ("4",))
    assert term.match_fields[0].key == "metadata.name"
    (preferred,) = spec.affinity.node_affinity.preferred_during_scheduling_ignored_during_execution
    assert preferred.weight == 10
    assert spec.affinity.pod_anti_affinity is not None
    (anti,) = spec.affinity.pod_anti_affinity.required_during_scheduling_ignored_during_execution
    assert anti.match_label_keys == ("pod-template-hash",)
    assert anti.namespace_selector is not None, "an empty selector means all namespaces, absent means only the pod's"
    (spread,) = spec.topology_spread_constraints
    assert (spread.min_domains, spread.node_affinity_policy, spread.node_taints_policy) == (2, None, "Honor")


def test_pod_containers() -> None:
    spec = read("pod", Pod).spec
    assert [(c.name, c.restart_policy) for c in spec.init_containers] == [("prepare", None), ("sidecar", "Always")]
    (main,) = spec.containers
    assert main.resources.requests == {"cpu": "1500m", "memory": "1Gi", "example.com/gpu": "2"}
    assert main.resources.claims[0].name == "gpu"
    assert (main.ports[0].host_ip, main.ports[0].host_port) == ("127.0.0.1", 80)
    assert main.env[1].value_from is not None
    assert main.env[1].value_from.field_ref is not None
    assert main.env[1].value_from.field_ref.field_path == "status.podIP"
    assert main.readiness_probe is not None
    assert main.readiness_probe.period_seconds == 3
    assert main.security_context is not None
    assert (main.security_context.privileged, main.security_context.run_as_user) == (True, 0)


def test_pod_volumes() -> None:
    volumes = {v.name: v for v in read("pod", Pod).spec.volumes}
    assert volumes["data"].persistent_volume_claim is not None
    assert volumes["data"].persistent_volume_claim.claim_name == "data"
    assert volumes["scratch"].empty_dir is not None
    assert (volumes["scratch"].empty_dir.medium, volumes["scratch"].empty_dir.size_limit) == ("Memory", "64Mi")
    assert volumes["eph"].ephemeral is not None
    template = volumes["eph"].ephemeral.volume_claim_template
    assert template is not None
    assert template["spec"]["volumeMode"] == "Filesystem", "fields without a model survive in a template"
    assert volumes["ebs"].aws_elastic_block_store is not None
    assert volumes["ebs"].aws_elastic_block_store.volume_id == "vol-9"
    assert volumes["ebs"].aws_elastic_block_store.read_only
    assert volumes["cfg"].config_map is not None
    assert volumes["cfg"].config_map.name == "cfg"


def test_pod_status() -> None:
    status = read("pod", Pod).status
    assert (status.phase, status.host_ip, status.pod_ip) == ("Running", "10.0.0.1", "10.9.0.7")
    assert [ip.ip for ip in status.pod_ips] == ["10.9.0.7", "fd00::7"]
    assert (status.start_time, status.nominated_node_name, status.qos_class) == (T0, "n9", "Burstable")
    assert status.conditions[0].last_probe_time is None
    (main,) = status.container_statuses
    assert (main.container_id, main.image_id, main.restart_count) == ("containerd://abc", "sha", 3)
    assert main.state.running is not None
    assert main.state.running.started_at == T0
    assert main.last_state.terminated is not None
    assert (main.last_state.terminated.exit_code, main.last_state.terminated.finished_at) == (137, None)
    assert main.allocated_resources == {"cpu": "1500m", "memory": "1Gi"}
    assert main.resources is not None
    assert main.resources.limits == {"memory": "1Gi"}


def test_node() -> None:
    node = read("node", Node)
    assert ("dedicated", "gpu", "NoSchedule") in [(t.key, t.value, t.effect) for t in node.spec.taints]
    assert (node.spec.pod_cidr, node.spec.provider_id) == ("10.9.0.0/24", "none://x")
    assert node.status.allocatable["kubernetes.io/batch-cpu"] == "4k", "the server writes quantities canonically"
    assert node.status.conditions[0].last_heartbeat_time == T0
    assert node.status.daemon_endpoints.kubelet_endpoint.port == 10250
    assert node.status.images[0].size_bytes == 12345678901
    assert node.status.node_info.system_uuid == "u"
    assert node.status.volumes_in_use == ("kubernetes.io/csi/x",)


def test_deployment_keeps_its_template_whole() -> None:
    deployment = read("deployment", Deployment)
    assert deployment.spec.strategy.rolling_update is not None
    assert deployment.spec.strategy.rolling_update.max_surge == "25%"
    assert deployment.spec.strategy.rolling_update.max_unavailable == 1
    assert deployment.spec.selector is not None
    assert deployment.spec.selector.match_expressions[0].values == ("front", "back")
    assert deployment.status.conditions[0].last_update_time == T0
    assert deployment.spec.template == raw("deployment")["spec"]["template"]
    typed = convert(deployment.spec.template, PodTemplateSpec)
    assert typed.metadata.labels == {"app": "web", "tier": "front"}
    assert typed.spec.containers[0].image == "nginx:1"


def test_other_workloads() -> None:
    stateful = read("statefulset", StatefulSet)
    assert stateful.spec.volume_claim_templates[0]["metadata"]["name"] == "data"
    assert stateful.spec.pod_management_policy == "OrderedReady"
    job = read("job", Job)
    assert (job.spec.completion_mode, job.spec.backoff_limit_per_index, job.spec.completions) == ("Indexed", 1, 5)
    assert job.spec.pod_failure_policy is not None
    assert [r.action for r in job.spec.pod_failure_policy.rules] == ["Ignore", "FailIndex"]
    assert job.spec.pod_failure_policy.rules[1].on_exit_codes is not None
    assert job.spec.pod_failure_policy.rules[1].on_exit_codes.values == (42,)
    assert (job.status.completed_indexes, job.status.ready, job.status.terminating) == ("0,3", 1, 0)
    cron = read("cronjob", CronJob)
    assert (cron.spec.schedule, cron.spec.time_zone, cron.spec.concurrency_policy) == (
        "0 3 * * *",
        "Etc/UTC",
        "Forbid",
    )
    made = convert(cron.spec.job_template["spec"], JobSpec)
    assert convert(made.template, PodTemplateSpec).spec.restart_policy == "OnFailure"


def test_disruption_budget() -> None:
    budget = read("poddisruptionbudget", PodDisruptionBudget)
    assert (budget.spec.min_available, budget.spec.max_unavailable) == ("50%", None)
    assert budget.status.disrupted_pods == {"web-1": T0}
    assert budget.status.disruptions_allowed == 1


def test_storage_and_classes() -> None:
    volume = read("persistentvolume", PersistentVolume)
    assert volume.spec.csi is not None
    assert volume.spec.csi.volume_handle == "vol-1"
    assert volume.spec.node_affinity is not None
    assert volume.spec.node_affinity.required is not None
    claim = read("persistentvolumeclaim", PersistentVolumeClaim)
    assert claim.spec.resources.requests == {"storage": "5Gi"}
    storage = read("storageclass", StorageClass)
    assert storage.volume_binding_mode == "WaitForFirstConsumer"
    assert storage.allowed_topologies[0].match_label_expressions[0].values == ("z1",)
    driver = read("csinode", CSINode).spec.drivers[0]
    assert driver.allocatable is not None
    assert (driver.node_id, driver.allocatable.count) == ("i-1", 16)
    runtime = read("runtimeclass", RuntimeClass)
    assert runtime.overhead is not None
    assert runtime.overhead.pod_fixed == {"cpu": "250m", "memory": "120Mi"}
    priority = read("priorityclass", PriorityClass)
    assert (priority.value, priority.preemption_policy, priority.global_default) == (9000, "Never", False)


def test_claims_leases_and_roles() -> None:
    request = read("resourceclaim", ResourceClaim).spec.devices.requests[0]
    assert request.exactly is not None
    assert (request.exactly.device_class_name, request.exactly.count) == ("gpu.example.com", 2)
    lease = read("lease", Lease)
    assert lease.spec.renew_time == datetime(2026, 1, 2, 3, 4, 6, 1, tzinfo=UTC), "leases have microseconds"
    assert raw("clusterrole")["rules"] is None, "what a server writes for a role without rules"
    assert read("clusterrole", ClusterRole).rules == ()


def test_admission() -> None:
    webhook = read("validatingwebhookconfiguration", ValidatingWebhookConfiguration).webhooks[0]
    assert webhook.rules[0].operations == ("CREATE", "UPDATE", "DELETE")
    assert webhook.match_conditions[0].name == "named"
    assert webhook.client_config.url == "https://127.0.0.1:9443/x"
    create = read("admissionreview-create", AdmissionReview).request
    assert create is not None
    assert (create.operation, create.resource.resource, create.old_object) == ("CREATE", "configmaps", None)
    assert create.object == raw("admissionreview-create")["request"]["object"]
    assert create.user_info.groups == ("system:masters", "system:authenticated")
    delete = read("admissionreview-delete", AdmissionReview).request
    assert delete is not None
    assert (delete.operation, delete.object) == ("DELETE", None)
    assert delete.old_object is not None


def test_a_refusing_webhook_writes_allowed_out() -> None:
    assert json.loads(encode(AdmissionResponse(uid="u", allowed=False))) == {"uid": "u", "allowed": False}


def _pruned(full: Any, part: Any) -> Any:
    """`full` without the map keys that `part` does not have."""
    if isinstance(full, dict) and isinstance(part, dict):
        return {k: _pruned(full[k], part[k]) for k in part if k in full} | {k: part[k] for k in part if k not in full}
    if isinstance(full, list) and isinstance(part, list) and len(full) == len(part):
        return [_pruned(f, p) for f, p in zip(full, part)]
    return full


@pytest.mark.parametrize("name", [n for n in names() if not n.startswith("admissionreview")])
def test_what_a_model_writes_is_what_it_read(name: str) -> None:
    obj = raw(name)
    resource = KINDS_BY_API_VERSION.get((obj["apiVersion"], obj["kind"]))
    assert resource is not None
    typed = read(name, resource.model)
    assert msgspec.json.decode(encode(typed)) == to_dict(typed)
    assert _pruned(obj, to_dict(typed)) == to_dict(typed), "every written value is the server's, nothing was invented"
    assert convert(obj, resource.model) == typed, "the in-process path reads the same"
