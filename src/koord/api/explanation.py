"""scheduling.koordinator.sh/v1alpha1 ScheduleExplanation: the answer to why a pod, job or gang is still pending."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from koord.api.marker import NULLABLE, SCHEMALESS, Duration, Rule
from koord.api.meta import Object
from koord.api.part import Part
from koord.api.pod import PodTemplateSpec


class ScheduleExplanationSpec(Part, frozen=True, kw_only=True):
    question_object_key: str = ""
    question_object_template: Annotated[PodTemplateSpec, SCHEMALESS] | None = None
    ttl: Annotated[Duration, Rule(default="24h")] | None = None


class SchedulingResult(Part, frozen=True, kw_only=True):
    namespace: str = ""
    name: str = ""
    uid: str = ""
    node_name: str = ""


class NodeFailedDetail(Part, frozen=True, kw_only=True):
    failed_plugin: str = ""
    reason: str = ""
    preempt_might_help: bool = False
    failed_nodes: tuple[str, ...] = ()


class Attempt(Part, frozen=True, kw_only=True):
    """One dry run, with or without preemption."""

    schedulable: bool = False
    failed_message: str = ""
    feasible_scheduling_result: tuple[SchedulingResult, ...] = ()
    node_failed_details: tuple[NodeFailedDetail, ...] = ()


class PossibleVictim(Part, frozen=True, kw_only=True):
    namespace: str = ""
    name: str = ""
    uid: str = ""
    is_nominated_pod: bool = False


class NodePossibleVictim(Part, frozen=True, kw_only=True):
    node_name: str = ""
    possible_victims: tuple[PossibleVictim, ...] = ()


class DetailedExplanation(Part, frozen=True, kw_only=True):
    topology_domain: str = ""
    schedulable: bool = False
    schedulable_after_preemption: bool = False
    failed_message: str = ""
    schedule_explanation: Attempt | None = None
    preempt_explanation: Attempt | None = None
    node_possible_victims: tuple[NodePossibleVictim, ...] = ()


class ScheduleExplanationStatus(Part, frozen=True, kw_only=True):
    schedulable: bool = False
    schedulable_after_preemption: bool = False
    failed_message: str = ""
    last_update_time: Annotated[datetime, NULLABLE] | None = None
    detailed_explanation: tuple[DetailedExplanation, ...] = ()


class ScheduleExplanation(Object, frozen=True, kw_only=True):
    """A question about a pending object and the scheduler's answer, by topology domain."""

    spec: ScheduleExplanationSpec = ScheduleExplanationSpec()
    status: ScheduleExplanationStatus = ScheduleExplanationStatus()
