"""This module is `koord explain container`: every value that the agent gave to a container, by whom and why, and what
the kernel holds.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import click
import msgspec

from koord.api.kubernetes.builtin_kinds import PODS
from koord.api.kubernetes.pod import Pod
from koord.cli import cluster_access, printing
from koord.cli.cluster_access import CONTAINERS_PATH, KoordletAddress
from koord.cli.printing import print_result
from koord.koordlet.agent_status import CgroupStatus, ContainersStatus, ContainerValue
from koord.kube.client.typed_client import Client
from koord.kube.transport.api_error import ApiError, unwrap
from koord.telemetry.clock import Clock, now
from koord.values import timestamp
from koord.values.duration import DurationError, parse_seconds

if TYPE_CHECKING:
    from rich.console import Console

_TITLES = ("FILE", "WANTED", "KERNEL", "DECIDED BY", "WRITTEN")
_MARGIN = "    "  # of the lines below a value
_NARROWEST = 40  # to which they are wrapped
_LOOK_AGAIN_S = 1.0
_LEARN_S = 15.0  # that an agent has to learn of a container that runs: it looks at its pods in rounds


class ContainerName(msgspec.Struct, frozen=True, kw_only=True):
    """ContainerName is what the command line names. An empty container is the pod's only one."""

    namespace: str
    pod: str
    container: str = ""

    @property
    def full_pod(self) -> str:
        return f"{self.namespace}/{self.pod}"


class ContainerExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """ContainerExplanation has the container and the groups of its pod that bound it, and how many values differ."""

    node: str
    container: CgroupStatus
    pod: tuple[CgroupStatus, ...] = ()
    differing: int = 0


@click.command()
@click.argument("name", metavar="[NAMESPACE/]POD[/CONTAINER]")
@click.option("-n", "--namespace", default="", help="The pod's namespace, if it is not part of its name.")
@click.option("-c", "--container", default="", help="The container, if it is not part of the name.")
@click.option(
    "--wait",
    "awaited",
    multiple=True,
    metavar="FILE=VALUE",
    help="Wait until the kernel holds this value for the container, then explain; may be given several times.",
)
@click.option("--timeout", default="60s", show_default=True, help="With --wait: how long at most.")
@cluster_access.koordlet_options
@cluster_access.output_option
@cluster_access.cluster_options
def container(
    name: str,
    namespace: str,
    container: str,
    awaited: tuple[str, ...],
    timeout: str,
    koordlet_namespace: str,
    koordlet_port: int,
    output: str,
    kubeconfig: str,
    context: str,
) -> None:
    """Explain every value of a container's cgroup, asked of the koordlet of its node.

    For each file the wanted value, who decided it (a runtime hook or a strategy), from which field and numbers, when it
    was written, what the kernel holds now and whether that differs. The values of the pod's own cgroup follow, as they
    bound the container too. Names and values are those of cgroup v1; a file of another name is in parentheses.
    """
    parts = name.split("/")
    if len(parts) > 3 or not all(parts):
        cluster_access.fail(f"{name!r} is not [NAMESPACE/]POD[/CONTAINER]")
    if len(parts) == 3 and container:
        cluster_access.fail("-c and a container in the name exclude each other")
    wanted = ContainerName(
        namespace=parts[0] if len(parts) > 1 else cluster_access.namespace_or_current(namespace, kubeconfig, context),
        pod=parts[min(len(parts) - 1, 1)],
        container=parts[2] if len(parts) == 3 else container,
    )
    address = KoordletAddress(namespace=koordlet_namespace, port=koordlet_port)
    values = _parse_awaited(awaited)
    try:
        seconds = parse_seconds(timeout)
    except DurationError as wrong:
        cluster_access.fail(f"--timeout: {wrong}")

    async def main(client: Client, clock: Clock) -> None:
        if values:
            found = await wait_for_values(client, wanted, address, values, clock, seconds)
        else:
            found = await explain_container(client, wanted, address, clock)
        print_result(found, output, lambda out: print_container(out, found, now(clock)))

    cluster_access.run_with_client(main, kubeconfig, context)


def _parse_awaited(awaited: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in awaited:
        file, equals, value = text.partition("=")
        if not file or not equals:
            cluster_access.fail(f"--wait {text}: expected FILE=VALUE, for example cpuset.cpus=0-3")
        found[file] = value
    return found


async def wait_for_values(
    client: Client,
    wanted: ContainerName,
    address: KoordletAddress,
    values: Mapping[str, str],
    clock: Clock,
    timeout_s: float,
) -> ContainerExplanation:
    """Ask until the kernel holds all `values` for the container; end the command where it does not in time."""
    deadline = clock.monotonic() + timeout_s
    while True:
        found = await _ask(client, wanted, address)
        held: dict[str, str | None] = {}
        if isinstance(found, ContainerExplanation):
            held = {value.knob: value.kernel for value in found.container.values}
            if all(held.get(file) == value for file, value in values.items()):
                return found
        if clock.monotonic() >= deadline:
            missing = [f"{file} is {_held_text(held, file)}, not {value}" for file, value in values.items()]
            if isinstance(found, UnknownContainer):
                cluster_access.fail(found.message)
            cluster_access.fail(f"after {timeout_s:g} s {'; '.join(missing)}")
        await clock.sleep(_LOOK_AGAIN_S)


def _held_text(held: Mapping[str, str | None], file: str) -> str:
    value = held.get(file)
    return "not given by koordlet" if file not in held else "unreadable" if value is None else _shown(value)


async def explain_container(
    client: Client, wanted: ContainerName, address: KoordletAddress, clock: Clock
) -> ContainerExplanation:
    """Ask the agent of the container's node; end the command where there is no such container or no answer.

    An agent learns of a pod a moment after it runs, so that one it does not know yet is asked for again.
    """
    deadline = clock.monotonic() + _LEARN_S
    while True:
        found = await _ask(client, wanted, address)
        if isinstance(found, ContainerExplanation):
            return found
        if not found.runs or clock.monotonic() >= deadline:
            cluster_access.fail(found.message)
        await clock.sleep(_LOOK_AGAIN_S)


class UnknownContainer(msgspec.Struct, frozen=True, kw_only=True):
    """UnknownContainer is what an agent that knows no such container leaves to say."""

    message: str
    runs: bool  # by the pod's status


async def _ask(
    client: Client, wanted: ContainerName, address: KoordletAddress
) -> ContainerExplanation | UnknownContainer:
    """Ask the agent; the answer may be that it does not know the container, as while this one starts."""
    found = await client.get(PODS, wanted.pod, wanted.namespace)
    if isinstance(found, ApiError) and found.not_found:
        cluster_access.fail(f"there is no pod {wanted.full_pod}")
    pod = unwrap(found)
    name = _choose_container(pod, wanted)
    if not pod.spec.node_name:
        cluster_access.fail(f"pod {wanted.full_pod} is on no node yet: koord explain pod says why")
    node = await cluster_access.get_node(client, pod.spec.node_name)
    query = {"namespace": wanted.namespace, "name": wanted.pod}
    answer = await cluster_access.ask_agent(client, node, address, CONTAINERS_PATH, query)
    if isinstance(answer, str):
        cluster_access.fail(answer)
    known = msgspec.convert(answer, ContainersStatus).containers
    # The kubelet knows a static pod by another uid; of two pods with one name, one of which ends, the uid tells which.
    listed = [one for one in known if one.uid == pod.metadata.uid] or known
    own = [one for one in listed if one.level == "container" and one.container == name]
    if not own:
        message = (
            f"the agent of {pod.spec.node_name} knows no cgroup of container {name} of {wanted.full_pod}:"
            f" the pod is {pod.status.phase}"
        )
        return UnknownContainer(message=message, runs=pod.status.phase == "Running")
    groups = tuple(one for one in listed if one.level == "pod")
    differing = sum(value.differs for group in (own[-1], *groups) for value in group.values)
    return ContainerExplanation(node=pod.spec.node_name, container=own[-1], pod=groups, differing=differing)


def _choose_container(pod: Pod, wanted: ContainerName) -> str:
    spec = pod.spec
    containers = [one.name for one in spec.containers]
    known = [*containers, *(one.name for one in spec.init_containers)]
    if wanted.container:
        if wanted.container not in known:
            cluster_access.fail(f"pod {wanted.full_pod} has no container {wanted.container}: it has {', '.join(known)}")
        return wanted.container
    if len(containers) != 1:
        cluster_access.fail(f"pod {wanted.full_pod} has {len(containers)} containers, name one: {', '.join(known)}")
    return containers[0]


def print_container(out: Console, found: ContainerExplanation, at: datetime) -> None:
    one = found.container
    out.print(f"Container  {one.namespace}/{one.pod}/{one.container}", style="bold")
    out.print(f"Node       {found.node}")
    out.print(f"ID         {one.id or '-'}")
    width = max((len(_file_text(value)) for group in (one, *found.pod) for value in group.values), default=0)
    _print_group(out, "Cgroup", one, at, width)
    for group in found.pod:
        out.print()
        _print_group(out, "Pod", group, at, width)
    count = sum(len(group.values) for group in (one, *found.pod))
    out.print()
    if found.differing:
        out.print(f"{found.differing} of {count} values are not what the kernel holds.", style="red")
    elif count:
        out.print(f"The kernel holds all {count} values.", style="green")


def _print_group(out: Console, title: str, group: CgroupStatus, at: datetime, width: int) -> None:
    out.print(f"{title:<10} {group.group}", soft_wrap=True)
    for name, text in group.others.items():
        out.print(f"Wanted     {name} {text}")
    for problem in group.problems:
        out.print(f"Problem    {problem}", style="red")
    if not group.values:
        out.print("           no hook and no strategy wants a value of its files")
        return
    out.print()
    _print_values(out, group.values, at, width)


def _print_values(out: Console, values: Sequence[ContainerValue], at: datetime, width: int) -> None:
    """Print each value in a line, and below it what led to it, over the whole width."""
    rows = [
        (
            _file_text(value),
            _shown(value.wanted),
            "unreadable" if value.kernel is None else _shown(value.kernel),
            value.decided_by,
            _written_text(value, at),
        )
        for value in values
    ]
    widths = [max(len(row[column]) for row in (_TITLES, *rows)) for column in range(len(_TITLES))]
    widths[0] = max(widths[0], width)
    out.print(_line(_TITLES, widths), style="bold", soft_wrap=True)
    for value, row in zip(values, rows, strict=True):
        out.print(_line(row, widths), style="red" if value.differs else "", soft_wrap=True)
        for text, style in (
            (value.why, "dim"),
            (f"not applied: {value.problem}" if value.problem else "", "yellow"),
            ("differs from what is wanted" if value.differs and not value.problem else "", "red"),
        ):
            for line in textwrap.wrap(text, max(out.width - len(_MARGIN), _NARROWEST), break_on_hyphens=False):
                out.print(_MARGIN + line, style=style, soft_wrap=True)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True)).rstrip()


def _file_text(value: ContainerValue) -> str:
    """Return cgroup v1's name, with that of the node's own version where it is another."""
    name = value.path.rpartition("/")[2]
    return value.knob if name in ("", value.knob) else f"{value.knob} ({name})"


def _shown(value: str) -> str:
    return value or '""'


def _written_text(value: ContainerValue, at: datetime) -> str:
    if value.written_at:
        return printing.format_age(timestamp.parse(value.written_at), at)
    return "no" if value.problem else "was right"
