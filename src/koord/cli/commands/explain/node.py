"""This module is `koord explain node`: what a node lends, term by term, from live objects and the controller's
decisions, printed as a table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from koord.api.config.slo import slo_documents
from koord.api.kubernetes.builtin_kinds import CONFIG_MAPS
from koord.api.kubernetes.core_v1 import ConfigMap
from koord.cli import cluster_access, printing
from koord.cli.cluster_access import get_if_exists
from koord.cli.printing import plain_table, print_result
from koord.kube.client.typed_client import Client
from koord.kube.transport.api_error import ApiError, unwrap
from koord.kube.transport.interface import Unreachable
from koord.manager.colocation import models
from koord.manager.colocation.decision import ColocationNodeView, ColocationSettings, decide_colocation
from koord.manager.configuration import documents
from koord.manager.configuration.documents import ParsedDocument, RejectedDocument, describe_error
from koord.manager.explain import lending_report
from koord.manager.explain.lending_history import LendingChange
from koord.manager.program import EXPLAIN_NODES_PATH
from koord.manager.reconcile_loop import NAMESPACE
from koord.telemetry.clock import Clock, now
from koord.values.names import dns1123_subdomain

if TYPE_CHECKING:
    from rich.console import Console

    from koord.cli.terminal import PlainTable


_STATE_TEXT = {
    "UpToDate": ("up to date", "green"),
    "WithinThreshold": ("close enough", "yellow"),
    "WriteDue": ("a write is due", "yellow"),
    "Withheld": ("not lent", "red"),
    "NoCapacity": ("not written", "red"),
    "NotComputed": ("not computed", "red"),
}
_TERM_SIGNS = {"": "", "+": "+", "-": "-", "min": "≤", "x": "×", "=": "="}


def print_node_explanation(
    console: Console, account: lending_report.NodeResourceReport, changes: Sequence[LendingChange], unavailable: str
) -> None:
    console.print(f"Node      {account.node}", style="bold")
    console.print(f"Settings  {_settings_text(account.settings)}")
    console.print(f"Report    {_report_text(account.report)}")
    for title, ratio in (("Normalization", account.normalization), ("Amplification", account.amplification)):
        if words := _ratio_text(ratio):
            console.print(f"{title}  {words}")
    console.print()
    console.print(_terms_table(account.lines))
    if account.zones:
        console.print(_zones_table(account))
    for words, pods in (
        ("Without a sample, so their requests are counted:", account.estimated),
        ("Gone from the node and still in its report, so their use is counted:", account.gone),
    ):
        if pods:
            console.print(f"{words} {_first_names(pods)}")
    resources = {line.resource for line in account.lines}
    _print_history(console, changes, unavailable, resources)


def _terms_table(lines: Sequence[lending_report.ResourceReport]) -> PlainTable:
    table = plain_table("RESOURCE", "", "TERM", ">AMOUNT", "")
    for line in lines:
        name = printing.short_resource_name(line.resource)
        if line.sum is not None:
            for term in line.sum.terms:
                amount = printing.format_amount(line.resource, term.amount)
                of = "" if term.of is None else f" of {printing.format_amount(line.resource, term.of)}"
                table.add_row(name, _TERM_SIGNS[term.sign], term.name, amount, term.note + of, style="dim")
                name = ""
        state, colour = _STATE_TEXT[line.state]
        computed = printing.format_amount(line.resource, line.computed)
        decided = f"decided by: {line.sum.binding}" if line.sum is not None else ""
        table.add_row(name, "=", "computed now", computed, decided, style="bold")
        shown = printing.format_amount(line.resource, line.shown)
        table.add_row("", "", "on the node", shown, ": ".join(part for part in (state, line.why) if part), style=colour)
        table.add_row()
    return table


def _zones_table(account: lending_report.NodeResourceReport) -> PlainTable:
    table = plain_table(
        "ZONE", "RESOURCE", ">CAPACITY", ">MARGIN", ">HELD", ">PODS", ">COMPUTED", ">IN THE TOPOLOGY", ""
    )
    for zone in account.zones:
        for line in zone.lines:
            terms = (
                []
                if line.sum is None
                else [printing.format_amount(line.resource, t.amount) for t in line.sum.terms[:4]]
            )
            computed, shown = (printing.format_amount(line.resource, units) for units in (line.computed, line.shown))
            state = _STATE_TEXT[line.state][0]
            table.add_row(zone.name, printing.short_resource_name(line.resource), *terms, computed, shown, state)
    table.add_row()
    return table


def _settings_text(settings: lending_report.StrategySources) -> str:
    if not settings.cluster_enabled:
        return "co-location is off for the cluster"
    layers = ["cluster"]
    layers += [f"nodeConfig {settings.node_config}"] if settings.node_config is not None else []
    layers += ["annotation of the node"] if settings.annotation else []
    layers += ["labels of the node"] if settings.labels else []
    state = "on" if settings.enabled else "off for this node"
    ignored = f"; ignored: {settings.ignored}" if settings.ignored else ""
    return f"co-location is {state}, by {', '.join(layers)}{ignored}"


def _report_text(report: lending_report.NodeMetricReport) -> str:
    if report.at is None or report.age_seconds is None or report.good_for_seconds is None:
        return report.flaw or "none"
    age = f"{printing.format_duration(report.age_seconds)} ago ({report.at:%H:%M:%S} UTC)"
    if report.age_seconds < 0:
        age = f"{printing.format_duration(report.age_seconds)} ahead of this clock"
    if report.flaw:
        return f"{age}, of no use: {report.flaw}"
    return f"{age}, good for another {printing.format_duration(report.good_for_seconds)}"


def _ratio_text(ratio: lending_report.RatioReport) -> str:
    """Return the text of a ratio; empty when there is nothing to report."""
    computed, shown = (
        ", ".join(f"{name} {value:.2f}" for name, value in r.items()) for r in (ratio.computed, ratio.shown)
    )
    if ratio.error:
        return f"on the node: {shown or 'none'}; cannot be computed: {ratio.error}"
    if set(ratio.computed.values()) <= {1.0} and set(ratio.shown.values()) <= {1.0}:
        return ""
    model = f" for {ratio.cpu_model}" if ratio.cpu_model else ""
    return f"{computed or 'none'}{model}" + ("" if computed == shown else f"; on the node: {shown or 'none'}")


def _print_history(console: Console, changes: Sequence[LendingChange], unavailable: str, resources: set[str]) -> None:
    if unavailable:
        console.print(f"History is unavailable: {unavailable}", style="yellow")
        return
    table = plain_table("CHANGED", "RESOURCE", ">FROM", ">TO", "MOVED BY")
    rows = 0
    for change in changes:
        when = f"{change.at:%m-%d %H:%M:%S}"
        for name, after in change.after.items():
            before = change.before.get(name)
            if before == after or name not in resources:
                continue
            rows += 1
            values = (printing.format_amount(name, before), printing.format_amount(name, after))
            table.add_row(when, printing.short_resource_name(name), *values, _change_cause_text(change, name))
            when = ""
    if rows:
        console.print(table)
    else:
        console.print("No change of what the node lends since koord-manager started or became the leader.")


def _change_cause_text(change: LendingChange, resource: str) -> str:
    if change.withheld:
        return change.withheld
    moved = [one for one in change.moved if one.resource == resource]
    if change.before.get(resource) is None:
        return "lent from here on"
    if not moved:
        return "; ".join(change.reasons)
    parts = []
    for one in moved[:3]:
        step = one.after - one.before
        words = printing.format_amount(resource, abs(step))
        parts.append(f"{one.term} {'+' if step > 0 else '-'}{words}")
    return ", ".join(parts)


def _first_names(names: Sequence[str], most: int = 5) -> str:
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")


T = TypeVar("T")

CONFIG_NAME = "slo-controller-config"
RESOURCES = ("batch-cpu", "batch-memory", "mid-cpu", "mid-memory")


class LendingHistory(msgspec.Struct, frozen=True, kw_only=True):
    """LendingHistory holds the controller's last changes, or why they are unavailable."""

    changes: tuple[LendingChange, ...] = ()
    unavailable: str = ""


class NodeExplanation(msgspec.Struct, frozen=True, kw_only=True):
    account: lending_report.NodeResourceReport
    history: LendingHistory


@click.command()
@click.argument("name")
@click.option("--resource", type=click.Choice(RESOURCES), help="Only this resource.")
@click.option("--config-namespace", default=NAMESPACE, show_default=True, help="Where koord-manager's settings are.")
@click.option("--config-name", default=CONFIG_NAME, show_default=True, help="The ConfigMap of its settings.")
@click.option("--manager-namespace", default=NAMESPACE, show_default=True, help="Where koord-manager runs.")
@click.option(
    "--manager-port", default=cluster_access.METRICS_PORT, show_default=True, help="The port of its --metrics-addr."
)
@cluster_access.output_option
@cluster_access.cluster_options
def node(
    name: str,
    resource: str | None,
    config_namespace: str,
    config_name: str,
    manager_namespace: str,
    manager_port: int,
    output: str,
    kubeconfig: str,
    context: str,
) -> None:
    """Explain why a node lends what it lends to batch and mid pods.

    Every term is computed now, from the objects in the cluster and by the rules of koord-manager; what is written on
    the node is shown beside it. The last changes and what moved them are asked of koord-manager.
    """
    if wrong := dns1123_subdomain(name):
        cluster_access.fail(f"{name!r} is no name of a node: {wrong[0]}")

    async def main(client: Client, clock: Clock) -> None:
        place = ManagerPlace(config_namespace, config_name, manager_namespace, manager_port)
        found = await explain_node(client, clock, name, place)
        if resource is not None:
            found = msgspec.structs.replace(found, account=_only_resource(found.account, resource))
        account, past = found.account, found.history
        print_result(
            found, output, lambda console: print_node_explanation(console, account, past.changes, past.unavailable)
        )

    cluster_access.run_with_client(main, kubeconfig, context)


class ManagerPlace(msgspec.Struct, frozen=True):
    """ManagerPlace says where koord-manager runs and where its settings are."""

    config_namespace: str = NAMESPACE
    config_name: str = CONFIG_NAME
    namespace: str = NAMESPACE
    port: int = cluster_access.METRICS_PORT


async def explain_node(client: Client, clock: Clock, name: str, place: ManagerPlace) -> NodeExplanation:
    """Compute what a node lends, and ask koord-manager for the last changes of it."""
    view = await read_node_view(client, name, clock)
    settings = await read_colocation_settings(client, place.config_namespace, place.config_name)
    account = lending_report.report_node(view, decide_colocation(view, settings))
    past = await read_lending_history(client, name, place.namespace, place.port)
    return NodeExplanation(account=account, history=past)


async def read_node_view(client: Client, name: str, clock: Clock) -> ColocationNodeView:
    found = await client.get(models.NODES, name)
    if isinstance(found, ApiError) and found.not_found:
        cluster_access.fail(f"there is no node {name}")
    node = unwrap(found)
    pods = unwrap(await client.list(models.PODS, fields=f"spec.nodeName={name}"))
    slim = [models.transform_pod(pod) for pod in pods.items]
    return ColocationNodeView(
        now=now(clock),
        node=node,
        metric=await get_if_exists(client, models.NODE_METRICS, name),
        pods=[pod.share for pod in slim if pod is not None and pod.share is not None],
        topology=await get_if_exists(client, models.TOPOLOGIES, name),
        device=await get_if_exists(client, models.DEVICES, name),
    )


async def read_colocation_settings(client: Client, namespace: str, name: str) -> ColocationSettings:
    found = await client.get(CONFIG_MAPS, name, namespace)
    config = ConfigMap() if isinstance(found, ApiError) and found.not_found else unwrap(found)

    def text(key: str) -> str:
        return config.data.get(key, "")

    colocation = documents.parse_colocation(text(slo_documents.COLOCATION))
    if isinstance(colocation, RejectedDocument):
        cluster_access.fail(
            f"ConfigMap {namespace}/{name} cannot be used: "
            f"{describe_error(slo_documents.COLOCATION, colocation.error)}."
            " koord-manager goes on with the settings that it had; they are not to be seen from here"
        )
    return ColocationSettings(
        colocation=colocation.value,
        normalization=_value_if_readable(documents.parse_cpu_normalization(text(slo_documents.CPU_NORMALIZATION))),
        amplification=_value_if_readable(
            documents.parse_resource_amplification(text(slo_documents.RESOURCE_AMPLIFICATION))
        ),
    )


def _value_if_readable(found: ParsedDocument[T] | RejectedDocument) -> T | None:
    return None if isinstance(found, RejectedDocument) else found.value


async def read_lending_history(client: Client, name: str, namespace: str, port: int) -> LendingHistory:
    """Read the history. The rest of the answer does not depend on it, so a failure is only reported."""
    try:
        answer = await cluster_access.ask_program(
            client, "koord-manager", f"/apis/v1{EXPLAIN_NODES_PATH}/{name}", namespace, port
        )
    except Unreachable as gone:
        return LendingHistory(unavailable=str(gone))
    if isinstance(answer, str):
        return LendingHistory(unavailable=answer)
    changes: Any = answer.get("changes", [])
    try:
        return LendingHistory(changes=msgspec.convert(changes, tuple[LendingChange, ...]))
    except msgspec.ValidationError as strange:
        return LendingHistory(unavailable=f"koord-manager's answer is not understood: {strange}")


def _only_resource(account: lending_report.NodeResourceReport, resource: str) -> lending_report.NodeResourceReport:
    wanted = f"kubernetes.io/{resource}"
    zones = tuple(
        msgspec.structs.replace(zone, lines=tuple(line for line in zone.lines if line.resource == wanted))
        for zone in account.zones
    )
    return msgspec.structs.replace(
        account,
        lines=tuple(line for line in account.lines if line.resource == wanted),
        zones=tuple(zone for zone in zones if zone.lines),
    )
