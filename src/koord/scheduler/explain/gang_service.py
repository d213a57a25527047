"""Serve gangs below /apis/v1: summaries with the fields of Koordinator's service, and reports for people."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from koord.policy.gang.register import Gang
from koord.scheduler.explain.gang_account import account, accounts
from koord.scheduler.explain.live import Explainer
from koord.scheduler.plugins.coscheduling.company import Company
from koord.telemetry.routing import Call, Handler, json, trouble

_NANO = 1_000_000_000


def routes(explainer: Explainer) -> tuple[tuple[str, Handler], ...]:
    def one(call: Call) -> Any:
        gang_id = f"{call.parameters['namespace']}/{call.parameters['name']}"
        company = explainer.gangs()
        gang = company.gangs.gangs.get(gang_id)
        return trouble(404, f"cannot find gang {gang_id}") if gang is None else json(summary(company, gang))

    def all_of_them(call: Call) -> Any:
        company = explainer.gangs()
        return json({gang.id: summary(company, gang) for gang in company.gangs.gangs.values()})

    def told(call: Call) -> Any:
        gang_id = f"{call.parameters['namespace']}/{call.parameters['name']}"
        found = account(explainer, gang_id)
        return trouble(404, f"cannot find gang {gang_id}") if found is None else json(found)

    return (
        ("/plugins/Coscheduling/gang/:namespace/:name", one),
        ("/plugins/Coscheduling/gangs", all_of_them),
        ("/explain/gangs", lambda _: json({"gangs": accounts(explainer)})),
        ("/explain/gangs/:namespace/:name", told),
    )


def summary(company: Company, gang: Gang) -> dict[str, Any]:
    group = company.gangs.group_of(gang)
    settings, defaults = gang.settings, company.defaults
    wait_s = settings.wait_s if settings is not None else 0.0

    def keys(uids: Iterable[str]) -> dict[str, Any]:
        return {gang.members[uid].key: {} for uid in uids}

    speaker = company.gangs.of(group.representative)
    waiting = [other.id for other in company.gangs.of_group(group) if other.waiting]
    return {
        "name": gang.id,
        "waitTime": int((defaults.wait_s if wait_s is None else wait_s) * _NANO),
        "createTime": min((member.created for member in gang.members.values()), default=0.0),
        "mode": "Strict" if settings is None or settings.strict else "NonStrict",
        "gangMatchPolicy": (settings.policy if settings is not None else None) or defaults.policy,
        "minRequiredNumber": settings.minimum if settings is not None else 0,
        "totalChildrenNum": settings.total if settings is not None else 0,
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
        "gangFrom": "GangFromPodGroupCrd" if gang.pod_group is not None or gang.labelled else "GangFromPodAnnotation",
        "hasGangInit": settings is not None,
    }
