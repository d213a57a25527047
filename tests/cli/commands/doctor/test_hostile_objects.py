"""Objects of any shape, as broken controllers and hostile users write them, never end a check with an exception."""

from __future__ import annotations

from typing import Any

import click
import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.cli.commands.doctor.command import WIDTH, report_text
from koord.cli.commands.doctor.facts import ClusterFacts, KoordletAnswers, moment, number
from koord.cli.commands.doctor.registry import run_checks
from tests.cli.commands.doctor import healthy_cluster as cluster

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=True),
    st.text(max_size=8),
    st.sampled_from(["0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59Z", "True", "False", "-1", "\x1b[31m", "a\nb"]),
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
LISTS = [
    name
    for name, value in msgspec.structs.asdict(cluster.healthy()).items()
    if isinstance(value, tuple) and name not in ("group_versions", "access")
]


def paths(value: Any, before: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths of all parts of an object, its own included."""
    found = [before] if before else []
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    for key, part in inner:
        found += paths(part, (*before, key))
    return found


def replaced(value: Any, path: tuple[Any, ...], other: Any) -> Any:
    if not path:
        return other
    made: Any = list(value) if isinstance(value, list | tuple) else dict(value)
    made[path[0]] = replaced(made[path[0]], path[1:], other)
    return made


def judged(facts: ClusterFacts) -> None:
    report = run_checks(facts)
    msgspec.json.encode(report)
    for line in click.unstyle(report_text(report)).splitlines():
        assert line.isprintable()
        assert len(line) <= WIDTH or "$ " in line  # commands stay on one line


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_one_nonsense_value_anywhere(data: st.DataObject) -> None:
    field = data.draw(st.sampled_from([*LISTS, "version"]))
    before = getattr(HEALTHY, field)
    path = data.draw(st.sampled_from(PATHS[field] or [()]))
    broken = replaced(before, path, data.draw(values))
    if field == "version":
        broken = broken if isinstance(broken, dict) else {}
    else:
        broken = tuple(one for one in broken if isinstance(one, dict)) if isinstance(broken, list | tuple) else ()
    judged(msgspec.structs.replace(HEALTHY, **{field: broken}))


objects = st.lists(
    st.dictionaries(st.sampled_from(["metadata", "spec", "status", "data", "webhooks"]), values), max_size=2
)


@settings(max_examples=30, deadline=None)
@given(st.fixed_dictionaries({name: objects.map(tuple) for name in LISTS}), values, st.binary(max_size=40))
def test_nothing_but_nonsense(lists: dict[str, Any], answer: Any, pem: bytes) -> None:
    told = answer if isinstance(answer, dict) else {"capabilities": answer, "connections": answer, "hooks": answer}
    judged(
        msgspec.structs.replace(
            HEALTHY,
            **{**lists, "deployments": HEALTHY.deployments, "daemon_sets": HEALTHY.daemon_sets},
            koordlets={"a": KoordletAnswers(capabilities=told, hooks=told)},
            serving_certificate=pem,
        )
    )


def test_values_beyond_all_measure_are_absent() -> None:
    assert number({"a": 10**400}, "a") is None
    assert number({"a": True}, "a") is None
    assert moment({"a": "0001-01-01T00:00:00+23:59"}, "a") is None
    assert moment({"a": 5}, "a") is None


SMALL = cluster.config_map("slo-controller-config", {"colocation-config": '{"enable": true}'})
# The scheduler's configuration takes half a second to check, and has tests of its own.
HEALTHY = msgspec.structs.replace(cluster.healthy(), config_maps=(SMALL,))
PATHS = {name: paths(getattr(HEALTHY, name)) for name in [*LISTS, "version"]}
