"""The metrics of Koordinator 1.8 and of the Kubernetes 1.35 parts in it, as they are on the wire: names, types, labels.

A metric of koord with one of these names must be of the same type and have the same labels. Those that koord does not
serve are listed with the reason.
"""
# ruff: noqa: E501  a line of the tables is one metric

from __future__ import annotations

import msgspec

_KOORDINATOR = """
counter scheduler_scheduling_timeout profile
gauge scheduler_reservation_status_phase name,phase
gauge scheduler_reservation_resource type,name,resource,unit
histogram scheduler_pod_scheduling_evaluated_nodes
histogram scheduler_pod_scheduling_feasible_nodes
histogram scheduler_elastic_quota_process_latency operation
histogram scheduler_elastic_quota_hook_plugin_latency plugin,operation
gauge scheduler_elastic_quota_spec name,resource,tree,is_parent,parent,field
gauge scheduler_elastic_quota_status name,resource,tree,is_parent,parent,field
histogram scheduler_update_elastic_quota_status_duration_seconds
gauge scheduler_secondary_device_not_well_planned node_name
gauge scheduler_waiting_gang_group_number
histogram scheduler_next_pod_delete_from_queue_latency
histogram scheduler_job_preemption_duration_seconds jobName,result
histogram scheduler_gang_schedule_cycle_duration_seconds reason,job_size
counter scheduler_reservation_selector_index_query_total result
histogram scheduler_reservation_selector_index_candidates_count
histogram scheduler_inline_batch_schedule_duration_seconds result
histogram scheduler_batch_algorithm_by_node_duration_seconds
histogram scheduler_batch_algorithm_by_pod_duration_seconds
counter scheduler_batch_partial_bind_jobs_total
counter scheduler_batch_partial_bind_pods_total status
counter scheduler_batch_bind_failures_total reason,phase
counter scheduler_batch_assumed_pods_cleanup_total reason
counter scheduler_workload_auditor_repeated_preemptions_total priority
counter scheduler_workload_auditor_preemption_invalidations_total priority
histogram scheduler_workload_auditor_victim_reschedule_duration_seconds priority
histogram scheduler_workload_auditor_preemption_victim_deleting_retries priority
histogram scheduler_workload_auditor_preemption_to_victim_deleted_seconds priority
histogram scheduler_workload_auditor_preemption_cycle_interrupted_seconds priority
histogram scheduler_workload_auditor_scheduling_events_before_outcome priority,event_type,outcome
histogram scheduler_workload_auditor_scheduling_event_interval_seconds priority
histogram scheduler_workload_auditor_record_method_duration_seconds priority,method
gauge yarn_node_cpu_resource instance,cluster
gauge yarn_node_memory_resource instance,cluster
gauge yarn_node_cpu_allocated_resource instance,cluster
gauge yarn_node_memory_allocated_resource instance,cluster
counter slo_controller_node_resource_reconcile_count status,reason
counter slo_controller_nodemetric_reconcile_count status,reason
counter slo_controller_nodemetric_spec_parse_count status,reason
counter slo_controller_nodeslo_reconcile_count status,reason
counter slo_controller_nodeslo_spec_parse_count status,reason
counter slo_controller_node_resource_run_plugin_status plugin,status,reason
gauge slo_controller_node_extended_resource_allocatable_internal node,resource,unit
histogram koord_manager_webhook_webhook_duration_milliseconds webhook_type,object_type,operation,plugin_name,status
gauge koord_manager_webhook_quota_shared_weight elasticquota_name,resource_name
counter koord_manager_webhook_binding_admission_decisions_total decision
counter descheduler_pods_evicted result,strategy,namespace,node
gauge koordlet_start_time node
counter koordlet_collect_node_cpu_info_status node,status
counter koordlet_collect_node_numa_info_status node,status
counter koordlet_collect_node_local_storage_info_status node,status
counter koordlet_pod_eviction node,reason
counter koordlet_pod_eviction_detail node,pod_namespace,pod_name,reason
gauge koordlet_node_used_cpu_cores node
gauge koordlet_node_used_memory_bytes node
gauge koordlet_be_suppress_cpu_cores node,type
gauge koordlet_be_suppress_ls_used_cpu_cores node
gauge koordlet_be_suppress_be_used_cpu_cores node
gauge koordlet_container_scaled_cfs_burst_us node,pod_namespace,pod_name,container_id,container_name
gauge koordlet_container_scaled_cfs_quota_us node,pod_namespace,pod_name,container_id,container_name
gauge koordlet_cpuset_share_pool_cpu_cores node
gauge koordlet_cpuset_be_share_pool_cpu_cores node
gauge koordlet_cpuset_share_pool_info node,cpu
gauge koordlet_cpuset_be_share_pool_info node,cpu
gauge koordlet_node_predicted_resource_reclaimable node,predictor,resource,unit
gauge koordlet_node_predicted_resource_peak node,predictor,resource,unit
gauge koordlet_container_core_sched_cookie node,pod_name,pod_namespace,pod_uid,container_name,container_id,core_sched_group,core_sched_cookie
counter koordlet_core_sched_cookie_manage_status node,core_sched_group,status
gauge koordlet_node_metric_node_usage node,resource,unit
gauge koordlet_node_metric_system_usage node,resource,unit
gauge koordlet_node_metric_numa_node_usage node,numa_node_id,resource,unit
gauge koordlet_node_metric_numa_system_usage node,numa_node_id,resource,unit
gauge koordlet_container_oom_score_adj node,pod_name,pod_namespace,pod_uid,container_name
histogram koordlet_resource_update_duration_milliseconds type,status
histogram koordlet_kubelet_request_duration_seconds verb,path,code
histogram koordlet_runtime_hook_invoked_duration_milliseconds node,hook,stage,status
histogram koordlet_runtime_hook_reconciler_invoked_duration_milliseconds node,level,resource_type,status
gauge koordlet_host_application_resource_usage node,host_application_name,resource,priority_class,qos
gauge koordlet_node_resource_allocatable node,resource,unit
gauge koordlet_node_priority_resource_reclaimable node,priority,resource,unit
gauge koordlet_node_resource_priority_reclaimable_status node,priority
gauge koordlet_container_resource_requests node,resource,unit,pod_uid,pod_name,pod_namespace,container_id,container_name
gauge koordlet_container_resource_limits node,resource,unit,pod_uid,pod_name,pod_namespace,container_id,container_name
gauge koordlet_container_cpi node,container_id,container_name,pod_uid,pod_name,pod_namespace,cpi_field
gauge koordlet_container_psi node,container_id,container_name,pod_uid,pod_name,pod_namespace,psi_resource_type,psi_precision,psi_degree,cpu_full_supported
gauge koordlet_pod_psi node,pod_uid,pod_name,pod_namespace,psi_resource_type,psi_precision,psi_degree,cpu_full_supported
gauge koordlet_resctrl_llc_occupancy node,cache_id,qos
gauge koordlet_resctrl_memory_bandwidth node,cache_id,qos,mb_type
"""
_KUBERNETES = """
counter scheduler_schedule_attempts_total profile,result
histogram scheduler_scheduling_attempt_duration_seconds profile,result
histogram scheduler_scheduling_algorithm_duration_seconds
histogram scheduler_preemption_victims
counter scheduler_preemption_attempts_total
gauge scheduler_pending_pods queue
gauge scheduler_inflight_events event
gauge scheduler_goroutines operation
gauge scheduler_cache_size type
counter scheduler_queue_incoming_pods_total queue,event
gauge scheduler_unschedulable_pods plugin,profile
histogram scheduler_event_handling_duration_seconds event
histogram scheduler_pod_scheduling_sli_duration_seconds attempts
histogram scheduler_pod_scheduling_attempts
histogram scheduler_framework_extension_point_duration_seconds extension_point,status,profile
histogram scheduler_plugin_execution_duration_seconds plugin,extension_point,status
histogram scheduler_queueing_hint_execution_duration_seconds plugin,event,hint
histogram scheduler_permit_wait_duration_seconds result
counter scheduler_plugin_evaluation_total plugin,extension_point,profile
histogram scheduler_preemption_goroutines_duration_seconds result
counter scheduler_preemption_goroutines_execution_total result
counter scheduler_batch_attempts_total profile,result
counter scheduler_batch_cache_flushed_total profile,reason
counter scheduler_async_api_call_execution_total call_type,result
histogram scheduler_async_api_call_execution_duration_seconds call_type,result
gauge scheduler_pending_async_api_calls call_type
counter scheduler_resourceclaim_creates_total status
histogram scheduler_get_node_hint_duration_seconds hinted,profile
histogram scheduler_store_schedule_results_duration_seconds profile
gauge kube_pod_resource_request namespace,pod,node,scheduler,priority,resource,unit
gauge kube_pod_resource_limit namespace,pod,node,scheduler,priority,resource,unit
counter rest_client_requests_total code,method,host
histogram rest_client_request_duration_seconds verb,host
histogram rest_client_rate_limiter_duration_seconds verb,host
gauge kubernetes_healthcheck name,type
counter kubernetes_healthchecks_total name,status,type
gauge leader_election_master_status name
gauge apiserver_storage_objects resource
counter process_cpu_seconds_total
gauge process_open_fds
gauge process_max_fds
gauge process_virtual_memory_bytes
gauge process_virtual_memory_max_bytes
gauge process_resident_memory_bytes
gauge process_start_time_seconds
"""
_BATCH = (
    "not counted apart: scheduler_inline_batch_schedule_duration_seconds times a batch, and bindings that fail are"
    " attempts with the result error"
)
_ASYNC = (
    "API calls of the scheduler are not queued by type: they wait in the client, and bindings in scheduler_goroutines"
)
_HINTS = "results of one pod are not kept as hints for the next: each pod is decided on the state of now"
NOT_SERVED = {
    "scheduler_elastic_quota_hook_plugin_latency": "hookPlugins of ElasticQuota are refused at the start",
    "scheduler_secondary_device_not_well_planned": "the devices of a pod are chosen together, and no node is marked",
    "scheduler_reservation_selector_index_query_total": "reservations are indexed by all labels that their owners name, and no query misses",
    "scheduler_reservation_selector_index_candidates_count": "reservations are indexed by all labels that their owners name",
    **dict.fromkeys(
        (
            "scheduler_batch_algorithm_by_node_duration_seconds",
            "scheduler_batch_algorithm_by_pod_duration_seconds",
            "scheduler_batch_partial_bind_jobs_total",
            "scheduler_batch_partial_bind_pods_total",
            "scheduler_batch_bind_failures_total",
            "scheduler_batch_assumed_pods_cleanup_total",
        ),
        _BATCH,
    ),
    **dict.fromkeys(
        (
            "scheduler_async_api_call_execution_total",
            "scheduler_async_api_call_execution_duration_seconds",
            "scheduler_pending_async_api_calls",
        ),
        _ASYNC,
    ),
    **dict.fromkeys(
        (
            "scheduler_batch_attempts_total",
            "scheduler_batch_cache_flushed_total",
            "scheduler_get_node_hint_duration_seconds",
            "scheduler_store_schedule_results_duration_seconds",
        ),
        _HINTS,
    ),
    "scheduler_resourceclaim_creates_total": "the scheduler creates no ResourceClaims",
    "rest_client_rate_limiter_duration_seconds": "the wait for the client's own rate limit is not measured apart",
}


class UpstreamMetric(msgspec.Struct, frozen=True):
    kind: str
    labels: frozenset[str]
    origin: str


def upstream_metrics() -> dict[str, UpstreamMetric]:
    """Return every metric of upstream by its name."""
    found: dict[str, UpstreamMetric] = {}
    for origin, table in (("Koordinator", _KOORDINATOR), ("Kubernetes", _KUBERNETES)):
        for line in table.strip().splitlines():
            kind, name, *labels = line.split()
            found[name] = UpstreamMetric(kind, frozenset(labels[0].split(",") if labels else ()), origin)
    return found
