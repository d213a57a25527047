"""On one and the same cluster a dry run chooses whom a real one would, budgets and limits included."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from koord.api.config.descheduler.plugin_args import API_VERSION
from koord.api.koordinator.slo import NodeMetric
from koord.api.model import convert
from koord.descheduler.configuration import DeschedulerSetup, build_setup, load_config
from koord.descheduler.framework.plugin import EvictionProposal
from koord.descheduler.framework.round import RoundOutcome, run_round
from koord.descheduler.framework.snapshot import ClusterSnapshot
from tests.descheduler.cluster_builders import NOW_S, make_node, make_snapshot
from tests.descheduler.migration_builders import make_job, make_workload, ready_pod

STAMP = datetime.fromtimestamp(NOW_S, UTC).isoformat()


def assembled(dry_run: bool, total: int | None, migration: dict[str, Any]) -> DeschedulerSetup:
    args = {
        "lowThresholds": {"cpu": 30},
        "highThresholds": {"cpu": 60},
        "anomalyCondition": {"consecutiveAbnormalities": 1, "consecutiveNormalities": 1},
    }
    config = load_config(
        {
            "apiVersion": API_VERSION,
            "kind": "DeschedulerConfiguration",
            "dryRun": dry_run,
            **({} if total is None else {"maxNoOfPodsToEvictTotal": total}),
            "profiles": [
                {
                    "name": "p",
                    "plugins": {
                        "balance": {"enabled": [{"name": "LowNodeLoad"}, {"name": "RemoveDuplicates"}]},
                        "deschedule": {"enabled": [{"name": "RemovePodsHavingTooManyRestarts"}]},
                    },
                    "pluginConfig": [
                        {"name": "LowNodeLoad", "args": args},
                        {"name": "MigrationController", "args": migration},
                        {"name": "RemovePodsHavingTooManyRestarts", "args": {"podRestartThreshold": 5}},
                    ],
                }
            ],
        }
    )
    assert not isinstance(config, list), config
    made = build_setup(config)
    assert isinstance(made, DeschedulerSetup), made
    return made


pods = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 4000), st.integers(0, 9), st.booleans()),
    max_size=25,
)


def cluster_snapshot(given: list[tuple[int, int, int, int, bool]]) -> ClusterSnapshot:
    nodes = [make_node(f"n{i}") for i in range(4)]
    made, uses, jobs = [], {node.metadata.name: list[dict[str, Any]]() for node in nodes}, []
    for index, (node, owner, milli, restarts, moving) in enumerate(given):
        name = f"p{index}"
        status = {"containerStatuses": [{"name": "c", "restartCount": restarts}]}
        made.append(ready_pod(name, f"n{node}", owner=f"ReplicaSet/w{owner}", status=status))
        usage = {"resources": {"cpu": f"{milli}m"}}
        uses[f"n{node}"].append({"namespace": "default", "name": name, "podUsage": usage})
        if moving and restarts == 0:
            jobs.append(make_job(f"j{index}", name, phase="Running"))
    metrics = [
        convert(
            {
                "metadata": {"name": name},
                "status": {"updateTime": STAMP, "nodeMetric": {"systemUsage": {}}, "podsMetric": listed},
            },
            NodeMetric,
        )
        for name, listed in uses.items()
    ]
    workloads = {f"ReplicaSet-w{i}": make_workload(f"w{i}", 20) for i in range(3)}
    return make_snapshot(nodes, made, metrics=metrics, jobs=jobs, workloads=workloads)


def chosen(outcome: RoundOutcome) -> list[tuple[str, str, str, str]]:
    found = (e for e in outcome.effects if isinstance(e, EvictionProposal))
    return [(e.pod.metadata.uid, e.plugin, e.target, e.reason) for e in found]


@settings(max_examples=60, deadline=None)
@given(pods, st.sampled_from([None, 1, 5]), st.sampled_from([1, 2, 10]), st.sampled_from([None, 1, 5]))
def test_a_dry_run_chooses_whom_a_real_one_would(
    given: list[tuple[int, int, int, int, bool]], total: int | None, per_node: int, per_workload: int | None
) -> None:
    migration = {"maxMigratingPerNode": per_node, "maxMigratingPerWorkload": per_workload}
    snapshot = cluster_snapshot(given)
    outcomes = []
    for dry_run in (False, True):
        made = assembled(dry_run, total, migration)
        outcomes.append(run_round(made.profiles, snapshot, made.limits, dry_run=bool(made.config.dry_run)))
    real, dry = outcomes
    assert chosen(real) == chosen(dry)
    assert all(e.dry_run for e in dry.effects)
    assert not any(e.dry_run for e in real.effects)
    uids = [uid for uid, *_ in chosen(real)]
    assert len(uids) == len(set(uids)), "nobody is proposed twice"
    assert total is None or len(uids) <= total
