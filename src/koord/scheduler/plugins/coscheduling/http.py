"""Serve gangs below /apis/v1: summaries with the fields of Koordinator's service, and reports for people."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from koord.scheduler.plugins.coscheduling.explain import QueueStatus, report_gang, report_gangs
from koord.scheduler.plugins.coscheduling.gang_cache import Gang
from koord.scheduler.plugins.coscheduling.gang_manager import GangManager
from koord.telemetry.http_routing import HttpCall, HttpHandler, error_reply, json_reply

_NANO = 1_000_000_000


def routes(gang_manager: GangManager, queue_status: QueueStatus) -> tuple[tuple[str, HttpHandler], ...]:
    def one(call: HttpCall) -> Any:
        gang_id = f"{call.parameters['namespace']}/{call.parameters['name']}"
        gang = gang_manager.gangs.gangs.get(gang_id)
        return (
            error_reply(404, f"cannot find gang {gang_id}")
            if gang is None
            else json_reply(gang_summary(gang_manager, gang))
        )

    def all_of_them(call: HttpCall) -> Any:
        return json_reply({gang.id: gang_summary(gang_manager, gang) for gang in gang_manager.gangs.gangs.values()})

    def told(call: HttpCall) -> Any:
        gang_id = f"{call.parameters['namespace']}/{call.parameters['name']}"
        found = report_gang(gang_manager, queue_status, gang_id)
        return error_reply(404, f"cannot find gang {gang_id}") if found is None else json_reply(found)

    return (
        ("/plugins/Coscheduling/gang/:namespace/:name", one),
        ("/plugins/Coscheduling/gangs", all_of_them),
        ("/explain/gangs", lambda _: json_reply({"gangs": report_gangs(gang_manager, queue_status)})),
        ("/explain/gangs/:namespace/:name", told),
    )


def gang_summary(gang_manager: GangManager, gang: Gang) -> dict[str, Any]:
    group = gang_manager.gangs.group_of_gang(gang)
    settings, defaults = gang.spec, gang_manager.defaults
    wait_s = settings.wait_time_s if settings is not None else 0.0

    def keys(uids: Iterable[str]) -> dict[str, Any]:
        return {gang.members[uid].key: {} for uid in uids}

    speaker = gang_manager.gangs.gang_of_pod(group.representative)
    waiting = [other.id for other in gang_manager.gangs.gangs_in_group(group) if other.waiting]
    return {
        "name": gang.id,
        "waitTime": int((defaults.wait_time_s if wait_s is None else wait_s) * _NANO),
        "createTime": min((member.created for member in gang.members.values()), default=0.0),
        "mode": "Strict" if settings is None or settings.strict else "NonStrict",
        "gangMatchPolicy": (settings.match_policy if settings is not None else None) or defaults.match_policy,
        "minRequiredNumber": settings.min_members if settings is not None else 0,
        "totalChildrenNum": settings.total_members if settings is not None else 0,
        "gangGroup": list(group.gangs),
        "children": keys(uid for uid, member in gang.members.items() if not member.ended),
        "pendingChildren": keys([*gang.pending, *gang.held]),
        "waitingForBindChildren": keys(gang.waiting),
        "boundChildren": keys(gang.bound),
        "onceResourceSatisfied": group.satisfied,
        "gangGroupInfo": {
            "Initialized": settings is not None,
            "GangGroupId": group.id,
            "GangGroup": list(group.gangs),
            "OnceResourceSatisfied": group.satisfied,
            "WaitingGangIDs": {gang_id: {} for gang_id in waiting},
            "RepresentativePodKey": speaker.members[group.representative].key if speaker is not None else "",
            "BindingMemberPods": {uid: {} for uid in sorted(group.binding)},
        },
        "gangFrom": "GangFromPodGroupCrd"
        if gang.pod_group is not None or gang.pod_group_members
        else "GangFromPodAnnotation",
        "hasGangInit": settings is not None,
    }
