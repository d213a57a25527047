"""This module is `koord up`: a whole cluster in this process, ready in seconds, gone with Ctrl-C."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import click
from click.core import ParameterSource

from koord.api.config.component import parse_bind_address
from koord.cli import scheduler_setup
from koord.cli.daemons.lifecycle import event_loop_factory
from koord.cli.up import demo
from koord.cli.up.components import (
    AGENTS_UP_TO,
    COMPONENTS,
    choose_components,
    runs_agents,
    shipped_profiles,
    simulated_pools,
)
from koord.cli.up.local_dashboard import DashboardListenError, LocalDashboard
from koord.embedded.apiserver.data_directory import FOLDER_MODE, DataDirectoryError
from koord.embedded.apiserver.http_server import NotLoopbackError
from koord.embedded.apiserver.store.journal import JournalError
from koord.embedded.cluster import ClusterSettings, ComponentFactory, EmbeddedCluster
from koord.embedded.kubelet.node_profile import InvalidProfile
from koord.kube.config.connection import BadConfig
from koord.telemetry.certificates import write_private_file
from koord.telemetry.logs import Logs
from koord.telemetry.process import freeze_after_startup, map_large_blocks, relax_gc
from koord.values.duration import DurationError, parse_seconds

STOP_TIMEOUT_S = 5
SERVICE_ACCOUNT = "ServiceAccount"
ADMISSION_PLUGINS = (SERVICE_ACCOUNT,)  # those that can be switched off, by kube-apiserver's names
NEXT_STEPS = """
Try:
  export KUBECONFIG={kubeconfig}
  kubectl get nodes
  kubectl create deployment web --image=nginx --replicas=5
  kubectl get pods -w
  koord node hooks
  kubectl get --raw /koord/koord-scheduler/metrics"""


def _print_profiles(context: click.Context) -> None:
    found = shipped_profiles()
    width = max(map(len, found)) + 2
    for name, text in found.items():
        click.echo(f"{name:<{width}}{textwrap.fill(text, 80 - width, subsequent_indent=' ' * width)}")
    context.exit()


def _fail(text: str) -> NoReturn:
    click.echo(f"koord: {text}", err=True)
    sys.exit(1)


def _parse_listen_address(text: str) -> tuple[str, int]:
    address = parse_bind_address(text)
    if address is None:
        _fail(f"--listen {text}: expected HOST:PORT, for example 127.0.0.1:6443")
    return address[0] or "127.0.0.1", address[1]


def _kubeconfig_path(given: Path | None, data_dir: Path | None) -> Path:
    if given is not None:
        return given
    if data_dir is not None:
        return data_dir / "kubeconfig"
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "koord" / "kubeconfig"


def _write_kubeconfig(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        write_private_file(path, text.encode())
    except OSError as error:
        _fail(f"cannot write kubeconfig {path}: {error.strerror}")


def _parse_set_options(pairs: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            _fail(f"--set {pair}: expected KEY=VALUE, for example scheduler.config=FILE")
        found[key] = value
    return found


@click.command()
@click.option("--nodes", type=click.IntRange(0, 100_000), default=3, show_default=True, help="Simulated nodes.")
@click.option(
    "--profile",
    type=click.Path(path_type=Path),
    help="YAML file with pools of nodes, or the name of a shipped one, instead of --nodes.",
)
@click.option(
    "--list-profiles",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=lambda context, _, asked: _print_profiles(context) if asked else None,
    help="Show the shipped profiles and exit.",
)
@click.option(
    "--listen", default="127.0.0.1:6443", show_default=True, metavar="HOST:PORT", help="Port 0: any free port."
)
@click.option("--allow-remote", is_flag=True, help="Permit --listen on addresses that other machines can reach.")
@click.option(
    "--tls-cert-file",
    type=click.Path(path_type=Path),
    help="Serve this certificate, with its chain; --allow-remote needs one. Default: one of the cluster's own.",
)
@click.option("--tls-private-key-file", type=click.Path(path_type=Path), help="The key of --tls-cert-file.")
@click.option("--data-dir", type=click.Path(path_type=Path), help="Keep the cluster here. Default: in memory only.")
@click.option("--durable", is_flag=True, help="With --data-dir: answer a write only when it is on disk.")
@click.option("--kubeconfig", type=click.Path(path_type=Path), help="Where to write the kubeconfig (mode 0600).")
@click.option("--components", default="all", show_default=True, metavar="A,B,C", help=f"Of: {', '.join(COMPONENTS)}.")
@click.option(
    "--set",
    "sets",
    multiple=True,
    metavar="KEY=VALUE",
    help="Setting of a program: scheduler.config=FILE, descheduler.config=FILE, and more.",
)
@click.option(
    "-v",
    "--v",
    "verbosity",
    type=click.IntRange(min=0),
    help="Log what the programs do: 5 and above show debug lines. Default: warnings only.",
)
@click.option(
    "--disable-admission-plugins",
    "disabled_plugins",
    type=click.Choice(ADMISSION_PLUGINS),
    multiple=True,
    help="ServiceAccount: pods keep the account and the volumes that they are created with.",
)
@click.option("--seed", type=int, help="Seed for simulated behaviour. Default: a new one each time.")
@click.option(
    "--demo",
    "demonstration",
    type=click.Choice(demo.DEMOS),
    help="Instead of a cluster to use: watch one in virtual time, which shows what koord claims (docs/demos.md).",
)
@click.option("--duration", metavar="TIME", help="With --demo: how much virtual time to show. Default: 24h.")
@click.option("--speed", type=click.FloatRange(min=1), help="With --demo: times faster than life. Default: all it can.")
@click.option("-o", "--output", type=click.Choice(("table", "json")), help="With --demo: a live table, or JSON lines.")
@click.option("--screenshot", type=click.Path(path_type=Path), help="With --demo: save the last picture as SVG here.")
@click.pass_context
def up(
    context: click.Context,
    nodes: int,
    profile: Path | None,
    listen: str,
    allow_remote: bool,
    tls_cert_file: Path | None,
    tls_private_key_file: Path | None,
    data_dir: Path | None,
    durable: bool,
    kubeconfig: Path | None,
    components: str,
    sets: tuple[str, ...],
    verbosity: int | None,
    disabled_plugins: tuple[str, ...],
    seed: int | None,
    demonstration: str | None,
    duration: str | None,
    speed: float | None,
    output: str | None,
    screenshot: Path | None,
) -> None:
    """Run a whole cluster in this process: API server, workload controllers, simulated nodes and koord's programs.

    Prints one line when it is ready and runs until Ctrl-C. With --demo colocation a day of services and batch work on
    20 simulated nodes passes in minutes before your eyes.
    """
    if demonstration is not None:
        if demonstration == demo.COLOCATION:
            _run_demo(context, duration, speed, output, screenshot)
        else:
            _run_story(context, demonstration, seed, output or "table")
        return
    for name, value in (("duration", duration), ("speed", speed), ("output", output), ("screenshot", screenshot)):
        if value is not None:
            _fail(f"--{name} goes with --demo")
    host, port = _parse_listen_address(listen)
    if durable and data_dir is None:
        _fail("--durable needs --data-dir: there is nothing to make durable in memory")
    if (tls_cert_file is None) != (tls_private_key_file is None):
        _fail("--tls-cert-file and --tls-private-key-file go together")
    if allow_remote and tls_cert_file is None:
        _fail(
            "--allow-remote needs a certificate that other machines can check: name one with --tls-cert-file and "
            "--tls-private-key-file"
        )
    stated = _parse_set_options(sets)
    made = choose_components(components, nodes=nodes, profile=profile, settings=stated)
    if isinstance(made, str):
        _fail(made)
    settings = ClusterSettings(
        host=host,
        port=port,
        allow_remote=allow_remote,
        tls_certificate=tls_cert_file,
        tls_key=tls_private_key_file,
        data_dir=data_dir,
        durable=durable,
        component_seed=seed,
        # Without the controllers of workloads nobody makes the accounts that pods would need.
        service_accounts=SERVICE_ACCOUNT not in disabled_plugins and any(name == "workloads" for name, _ in made),
    )
    path = _kubeconfig_path(kubeconfig, data_dir)
    if verbosity is not None:
        Logs(verbosity=verbosity).start()
    cluster = EmbeddedCluster(settings, made)
    try:
        with asyncio.Runner(loop_factory=event_loop_factory()) as runner:
            runner.run(_serve(cluster, path, _remarks(made, nodes, profile, stated)))
    except NotLoopbackError as error:
        _fail(f"{error} (--allow-remote)")
    except (JournalError, DataDirectoryError, DashboardListenError, BadConfig) as error:
        _fail(str(error))
    except BrokenPipeError:
        raise  # whoever read our lines is gone, which has nothing to do with the address
    except OSError as error:
        _fail(f"cannot listen on {listen}: {error.strerror or error}; choose another address with --listen")


# What a demonstration settles by itself.
_FLAG_OF = {"sets": "set", "verbosity": "v", "disabled_plugins": "disable-admission-plugins"}
_NOT_WITH_DEMO = (
    *("profile", "listen", "allow_remote", "tls_cert_file", "tls_private_key_file", "data_dir", "durable"),
    *("kubeconfig", "components", "sets", "verbosity", "disabled_plugins"),
)


def _run_story(context: click.Context, name: str, seed: int | None, output: str) -> None:
    from koord.cli.up.demo_stories import STORIES
    from koord.cli.up.demo_story import run_story

    for option in (*_NOT_WITH_DEMO, "nodes", "duration", "speed", "screenshot"):
        if context.get_parameter_source(option) is ParameterSource.COMMANDLINE:
            _fail(f"--{_FLAG_OF.get(option, option).replace('_', '-')} does not go with --demo {name}")
    if name == demo.YARN:
        from koord.cli.up.demo_yarn import yarn_story

        story = yarn_story(os.environ)
        if isinstance(story, str):
            _fail(f"--demo {name}: {story}")
    else:
        story = STORIES[name]
    run_story(story, demo.DEFAULT_SEED if seed is None else seed, output, _fail)


def _run_demo(
    context: click.Context, duration: str | None, speed: float | None, output: str | None, screenshot: Path | None
) -> None:
    given = ParameterSource.COMMANDLINE
    for name in _NOT_WITH_DEMO:
        if context.get_parameter_source(name) is given:
            _fail(f"--{_FLAG_OF.get(name, name).replace('_', '-')} does not go with --demo")
    try:
        seconds = parse_seconds(duration or "24h")
    except DurationError as error:
        _fail(f"--duration {duration}: {error}")
    if seconds <= 0:
        _fail(f"--duration {duration}: must be more than nothing")
    nodes = context.params["nodes"] if context.get_parameter_source("nodes") is given else demo.DEFAULT_NODES
    seed = context.params["seed"]
    demo.run_demo(
        demo.DemoOptions(
            hours=seconds / 3600,
            speed=speed,
            nodes=nodes,
            seed=demo.DEFAULT_SEED if seed is None else seed,
            output=output or "table",
            screenshot=screenshot,
        )
    )


def _remarks(
    components: Sequence[tuple[str, ComponentFactory]], nodes: int, profile: Path | None, stated: Mapping[str, str]
) -> list[str]:
    """Return what a user of this cluster should know of it."""
    running = {name for name, _ in components}
    remarks: list[str] = []
    missing = scheduler_setup.missing_plugins()
    if "scheduler" in running and missing and "scheduler.config" not in stated:
        remarks.append(f"koord-scheduler runs without {', '.join(missing)}: this version does not have them yet.")
    pools = simulated_pools(nodes, profile)
    many = not isinstance(pools, InvalidProfile) and not runs_agents(pools, stated, running)
    if {"nodes", "manager"} <= running and many and "nodes.agents" not in stated:
        remarks.append(
            f"More than {AGENTS_UP_TO} nodes run without node agents, so nothing limits or pins their containers: "
            "--set nodes.agents=true switches them on."
        )
    return remarks


def _rotate_token(cluster: EmbeddedCluster, kubeconfig: Path) -> None:
    try:
        cluster.rotate_token()
        write_private_file(kubeconfig, cluster.kubeconfig().encode())
    except OSError as error:
        click.echo(f"koord: the new token is not written: {error}", err=True)
        return
    click.echo(f"koord: new token, kubeconfig={kubeconfig}")
    sys.stdout.flush()


async def _serve(cluster: EmbeddedCluster, kubeconfig: Path, remarks: Sequence[str]) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    relax_gc()
    map_large_blocks()
    await cluster.start()
    freeze_after_startup()
    try:
        # Whoever reads "ready" may ask for a new token at once; an unhandled SIGUSR1 would end the process.
        loop.add_signal_handler(signal.SIGUSR1, _rotate_token, cluster, kubeconfig)
        _write_kubeconfig(kubeconfig, cluster.kubeconfig())
        dashboard = cluster.running_component("dashboard")
        shown = f" dashboard={dashboard.url}" if isinstance(dashboard, LocalDashboard) else ""
        click.echo(f"koord: ready {cluster.url} kubeconfig={kubeconfig}{shown}")
        click.echo(NEXT_STEPS.format(kubeconfig=kubeconfig))
        for remark in remarks:
            click.echo(f"\n{remark}")
        sys.stdout.flush()
        await stop.wait()
    finally:
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await cluster.stop()
        except TimeoutError:
            _fail(f"did not stop within {STOP_TIMEOUT_S} s; what was acknowledged is safe, the rest was cut off")
