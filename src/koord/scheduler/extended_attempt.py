"""Decide about a pod together with extenders: decide -> ask them -> decide again with their results.

While extenders are asked the cluster changes. So nothing follows from a decision that was made before an answer: the
last one is made of the state as it is, in one step with what the caller does then.
"""

from __future__ import annotations

from collections.abc import Callable

from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.extender import Extenders
from koord.scheduler.framework.attempt import SchedulingAttempt
from koord.scheduler.framework.decision import EXTENDER, AttemptError, Unschedulable
from koord.scheduler.framework.engine import SchedulingEngine
from koord.scheduler.framework.verdict import Fault
from koord.scheduler.preemption.evaluator import replan_preemption
from koord.scheduler.preemption.extender_review import PreemptionReview

# How often extenders are asked in one attempt: again when only nodes fit by then that they were not asked about.
_MAX_FILTER_ROUNDS = 3


async def decide_with_extenders(
    engine: SchedulingEngine, extenders: Extenders, pod: PodInfo, runners_up: int, is_gone: Callable[[], bool]
) -> SchedulingAttempt | AttemptError | None:
    """Decide about a pod, PostFilter included; None when the pod is gone. The caller must not await before it acts."""
    review = PreemptionReview(extenders.reviews_preemption_for)
    filter_rounds = 0
    while filter_rounds < _MAX_FILTER_ROUNDS:
        attempt = engine.decide(pod)
        names = attempt.candidate_nodes()
        if names and extenders.are_interested(pod):
            results = await extenders.filter_and_prioritize(pod, names)
            if is_gone():
                return None
            if isinstance(results, Fault):
                return AttemptError(EXTENDER, results.message)
            attempt = engine.decide(pod, runners_up, extender_results=results)
        if not isinstance(attempt.decision, Unschedulable):
            return attempt
        if attempt.has_unasked_nodes:
            filter_rounds += 1
            continue
        engine.post_filter(attempt, review)
        context = attempt.post_filter_context
        if context is not None and context.proposals:  # there is an end: see `PreemptionReview.is_exhausted`
            await extenders.review_proposals(context.proposals, review)
            if is_gone():
                return None
            continue
        if context is not None and context.offered_candidates is not None:
            candidates = context.offered_candidates[1]
            left = await extenders.process_preemption(pod, candidates)
            attempt.decision = replan_preemption(context, left) if left is not candidates else attempt.decision
        return attempt
    return AttemptError(EXTENDER, "the nodes that fit changed each time extenders were asked")
