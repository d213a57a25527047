"""The CPUs of host applications."""

from __future__ import annotations

import pytest

from koord.api.koordinator.slo import HostApplicationSpec
from koord.host.cgroup.knob import CPUSET
from koord.koordlet.hooks.cpuset import decide_host_application
from koord.koordlet.hooks.hook import HookPlan, NodeRules
from tests.koordlet.hooks.hook_builders import pooled_rules, values


@pytest.mark.parametrize("qos", ["LSE", "LSR", "BE", "SYSTEM", ""])
def test_only_ls_applications_have_cpus_from_the_pools(qos: str) -> None:
    one = HostApplicationSpec(name="web", qos="LS")
    assert values(decide_host_application(one, pooled_rules())) == {CPUSET: "0-15"}
    assert decide_host_application(HostApplicationSpec(name="web", qos=qos), pooled_rules()) == HookPlan()


def test_without_pools_nothing_is_written() -> None:
    one = HostApplicationSpec(name="web", qos="LS")
    assert decide_host_application(one, NodeRules()) == HookPlan()
    assert decide_host_application(one, NodeRules(ls_pools=())) == HookPlan()
