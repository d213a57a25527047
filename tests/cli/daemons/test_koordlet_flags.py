"""The command line of koordlet: Koordinator's flags as charts write them, and what they come to."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from koord.api.koordinator.protocol import BEST_EFFORT
from koord.cli.daemons.flag_set import FlagValues
from koord.cli.daemons.koordlet import run
from koord.cli.daemons.koordlet_flags import KOORDLET_FLAGS, KoordletPlan, plan_koordlet, to_double_dash
from koord.cli.main import cli
from koord.cli.manifests.daemonsets import GATE_MOUNTS
from koord.host.filesystem import DAEMONSET_PATHS, HostPaths
from koord.koordlet.cgroup_writer.executor import CgroupExecutor
from koord.koordlet.cgroup_writer.journal import WriteJournal
from koord.koordlet.feature_gates import default_gates
from koord.telemetry.clock import ManualClock
from tests.host.fake_machine import FakeMachine
from tests.koordlet.cgroup_writer.executor_fixture import write

ENVIRON = {"NODE_NAME": "n1"}


def plan(*argv: str, **environ: str) -> KoordletPlan:
    values = KOORDLET_FLAGS.parse(to_double_dash(argv))
    assert isinstance(values, FlagValues), values
    made = plan_koordlet(values, {**ENVIRON, **environ})
    assert isinstance(made, KoordletPlan), made
    return made


def refused(*argv: str, environ: dict[str, str] | None = None) -> str:
    values = KOORDLET_FLAGS.parse(to_double_dash(argv))
    assert isinstance(values, FlagValues), values
    made = plan_koordlet(values, ENVIRON if environ is None else environ)
    assert isinstance(made, str)
    return made


def test_nothing_said_is_koordinators_defaults() -> None:
    made = plan()
    assert made.settings.gates == default_gates()
    assert made.settings.address == ("", 9316)
    assert made.settings.state_dir == "/host-var-run/koordlet"
    assert made.paths == DAEMONSET_PATHS
    assert (made.settings.collect.interval_s, made.settings.refresh_s) == (1.0, 60.0)
    assert (made.settings.strategies.cpu_evict_cooldown_s, made.settings.strategies.memory_evict_cooldown_s) == (
        20.0,
        4.0,
    )
    assert (made.qps, made.burst) == (20.0, 30)


def test_mps_is_seen_from_the_pod_and_from_the_machine() -> None:
    in_pod = plan().settings
    assert in_pod.mps.folder == "/host-var-run/koordlet/mps"
    assert in_pod.strategies.hooks.mps_folder == "/var/run/koordlet/mps"
    assert in_pod.strategies.hooks.mps_shared_memory == GATE_MOUNTS["MPSControlDaemon"][1]
    on_machine = plan("--mps-directory=/mps/", "--mps-control-command=mps -multiuser-server", agent_mode="hostMode")
    assert on_machine.settings.mps.folder == on_machine.settings.strategies.hooks.mps_folder == "/var/run/mps"
    assert on_machine.settings.mps.command == ("mps", "-multiuser-server")
    assert on_machine.settings.strategies.hooks.mps_shared_memory == "/dev/shm"


def test_the_arguments_of_a_chart_are_understood() -> None:
    made = plan(
        "-addr=:9400",
        "-cgroup-root-dir=/host-cgroup/",
        "--feature-gates=AllAlpha=false,AuditEvents=true,CPUEvict=true,BatchResource=true",
        "-logtostderr=true",
        "-v=4",
        "--runtime-hooks-network=unix",
    )
    assert made.settings.address == ("", 9400)
    assert {"AuditEvents", "CPUEvict", "BatchResource", "BECPUSuppress"} <= made.settings.gates
    assert made.warnings == ()


def test_on_the_machine_itself_paths_are_its_own() -> None:
    assert plan(agent_mode="hostMode").paths == HostPaths()
    assert plan("--cgroup-root-dir=/elsewhere/", agent_mode="hostMode").paths.cgroup == "/elsewhere"


def test_intervals_reach_the_strategies() -> None:
    made = plan(
        "--cpu-suppress-interval-seconds=5", "--reconcile-interval-seconds=3", "--memory-evict-cool-time-seconds=9"
    )
    assert made.settings.strategies.period_s["CPUSuppresss"] == 5.0
    assert made.settings.strategies.period_s["CPUBurst"] == 3.0
    assert made.settings.strategies.memory_evict_cooldown_s == 9.0


def test_collectors_need_their_gates() -> None:
    assert not plan("--enable-resctrl-collector").settings.collect.resctrl
    assert plan("--enable-resctrl-collector", "--feature-gates=ResctrlCollector=true").settings.collect.resctrl
    # The scanner of cold memory is switched on by writing, which safe mode must not do.
    assert not plan("--feature-gates=ColdPageCollector=true", "--safe-mode").settings.collect.cold_pages


@pytest.mark.parametrize(
    ("argv", "environ", "words"),
    [
        pytest.param((), {}, "NODE_NAME is not set", id="no-node-name"),
        pytest.param(("--feature-gates=Nonsense=true",), None, "is not a known feature gate", id="unknown-gate"),
        pytest.param(("--feature-gates=Libpfm4=true",), None, "Libpfm4=true is not built", id="unbuilt-gate"),
        pytest.param(("--addr=9316",), None, "is not an address", id="no-address"),
        pytest.param(("--pod-source=docker",), None, "auto, kubelet or apiserver", id="unknown-source"),
        pytest.param(
            ("--only-evict-by-api=false", "--docker-endpoint=/var/run/docker.sock"),
            None,
            "pods of docker cannot be evicted by CRI",
            id="docker-by-cri",
        ),
        pytest.param(
            ("--only-evict-by-api=false", "--default-runtime-type=pouch"),
            None,
            "pods of pouch cannot be evicted by CRI",
            id="pouch-by-cri",
        ),
        pytest.param(
            ("--only-evict-by-api=false", "--containerd-endpoint=tcp://1.2.3.4:1"),
            None,
            "the absolute path of a Unix socket",
            id="no-socket",
        ),
        pytest.param(
            ("--only-evict-by-api=false", "--cri-stop-grace-period=1m"), None, "from 0 to 10", id="long-grace"
        ),
        pytest.param(
            ("--only-evict-by-api=false", "--cri-stop-grace-period=1500ms"), None, "from 0 to 10", id="half-a-second"
        ),
        pytest.param(("--collect-res-used-interval=1ms",), None, "less than 100ms", id="too-often"),
    ],
)
def test_what_is_wrong_is_told(argv: tuple[str, ...], environ: dict[str, str] | None, words: str) -> None:
    assert words in refused(*argv, environ=environ)


def test_pods_are_evicted_by_the_api_unless_a_flag_says_otherwise() -> None:
    assert plan().settings.cri_eviction is None
    # Charts name sockets whether or not anything is evicted through them.
    assert plan("-only-evict-by-api", "-docker-endpoint=/d.sock").settings.cri_eviction is None
    made = plan("-only-evict-by-api=false").settings.cri_eviction
    assert made is not None
    assert made.endpoints == tuple(
        f"/host-var-run/{name}"
        for name in ("containerd/containerd.sock", "containerd.sock", "crio/crio.sock", "crio.sock")
    )
    assert (made.grace_s, made.timeout_s) == (0, 5.0)


def test_the_socket_that_a_flag_names_is_looked_at_first() -> None:
    made = plan(
        "--only-evict-by-api=false",
        "-containerd-endpoint=unix:///var/run/containerd.sock",
        "--cri-stop-grace-period=3s",
        agent_mode="hostMode",
    ).settings.cri_eviction
    assert made is not None
    assert made.endpoints[:2] == ("/var/run/containerd.sock", "/var/run/containerd/containerd.sock")
    assert (len(made.endpoints), made.grace_s) == (4, 3)


def test_eviction_by_cri_without_grpc_is_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "hidden.py").write_text(
        "import sys\n"
        "import importlib.machinery as machinery\n"
        "find = machinery.PathFinder.find_spec\n"
        "hide = lambda name, *more: None if name == 'grpc' else find(name, *more)\n"
        "machinery.PathFinder.find_spec = staticmethod(hide)\n"
        "from koord.cli.daemons.koordlet import run\n"
        "sys.exit(run(sys.argv[1:], {'NODE_NAME': 'n1'}))\n"
    )
    said = subprocess.run(
        [sys.executable, str(tmp_path / "hidden.py"), "--only-evict-by-api=false"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert said.returncode == 1
    assert said.stderr == (
        "koordlet: --only-evict-by-api=false: eviction by CRI needs gRPC, which is not installed; "
        "it comes with the extra `hooks`\n"
    )


def test_restore_puts_back_what_the_journal_holds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    machine = FakeMachine(tmp_path, 1)
    machine.put("proc/sys/kernel/random/boot_id", "boot-one\n")
    top = machine.layout.qos_dir(BEST_EFFORT)
    before = machine.snapshot()
    journal = WriteJournal(machine.host, str(tmp_path / "state/journal.jsonl"))
    CgroupExecutor(machine.tree, ManualClock(), journal=journal).execute(
        [write("cpu.cfs_quota_us", top, "20000"), write("cpu.shares", top, "77")]
    )
    assert machine.snapshot() != before
    paths = machine.paths
    arguments = ["restore", f"--state-dir={tmp_path / 'state'}"]
    arguments += [f"-cgroup-root-dir={paths.cgroup}", f"-proc-root-dir={paths.proc}", f"-sys-root-dir={paths.sys}"]
    assert run(arguments, {}) == 0
    assert {name: text.split() for name, text in machine.snapshot().items()} == {
        name: text.split() for name, text in before.items()
    }
    assert "2 files in the journal: 2 put back, 0 had their value already" in capsys.readouterr().out
    assert run(arguments, {}) == 0
    assert "the journal is empty: there is nothing to put back" in capsys.readouterr().out


def test_restore_undoes_what_is_no_cgroup_value(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    machine = FakeMachine(tmp_path, 2)
    machine.put("state/core-sched.json", '["kubepods/podgone/one"]')
    (tmp_path / "state/terway-files").mkdir()
    arguments = ["restore", f"--state-dir={tmp_path / 'state'}"]
    arguments += [f"-cgroup-root-dir={machine.paths.cgroup}", f"-proc-root-dir={machine.paths.proc}"]
    assert run(arguments, {}) == 1
    assert not (tmp_path / "state/core-sched.json").exists()
    assert "terway-files" in capsys.readouterr().err
    (tmp_path / "state/terway-files").rmdir()
    assert run(arguments, {}) == 0


def test_restore_counts_what_it_did_not_put_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    machine = FakeMachine(tmp_path, 1)
    machine.put("proc/sys/kernel/random/boot_id", "boot-one\n")
    top = machine.layout.qos_dir(BEST_EFFORT)
    gone, file = machine.pod(BEST_EFFORT, "gone", "containerd://one"), "cpu.cfs_quota_us"
    journal = WriteJournal(machine.host, str(tmp_path / "state/journal.jsonl"))
    CgroupExecutor(machine.tree, ManualClock(), journal=journal).execute(
        [
            write(file, top, "20000"),
            write("cpu.shares", top, "77"),
            write(file, gone, "5000"),
            write("cpu.idle", top, "1"),
        ]
    )
    machine.remove(gone)
    cpu = Path(machine.tree.group_path("cpu", top))
    (cpu / "cpu.shares").write_text("99\n")  # an operator
    (cpu / file).unlink()
    (cpu / file).mkdir()  # neither readable nor writable
    arguments = ["restore", f"--state-dir={tmp_path / 'state'}", f"-cgroup-root-dir={machine.paths.cgroup}"]
    arguments += [f"-proc-root-dir={machine.paths.proc}", f"-sys-root-dir={machine.paths.sys}"]
    assert run(arguments, {}) == 1
    said = capsys.readouterr()
    assert "1 put back" in said.out
    assert "1 are gone, 1 were written by others since and left, 1 could not be put back" in said.out
    assert "cpu.shares" in said.err
    assert "Is a directory" in said.err


def test_capabilities_of_this_machine_are_rows(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path, 2)
    before = machine.snapshot()
    result = CliRunner().invoke(
        cli, ["node", "capabilities", "--cgroup-root", machine.paths.cgroup, "--look-only", "-o", "json"]
    )
    assert result.exit_code == 0, result.output
    rows = {row["knob"]: row for row in json.loads(result.output)}
    assert rows["cpu.cfs_quota_us"]["state"] == "supported"
    assert rows["cpu.bvt_warp_ns"]["state"] == "off"
    assert machine.snapshot() == before


def test_hooks_are_asked_by_nri_and_served_where_a_proxy_is() -> None:
    made = plan("--runtime-hooks-reconcile-interval=3s", "--disable-unset-cpu-quota").settings
    nri = made.hooks.nri
    assert nri is not None
    assert (nri.socket_path, nri.plugin_name, nri.plugin_index) == ("/host-var-run/nri/nri.sock", "koordlet_nri", "00")
    assert nri.lock_path == f"{made.state_dir}/nri.lock"
    assert (made.hooks.server, made.hooks.registrations) == ("auto", "/host-etc-hookserver")
    assert made.strategies.period_s["RuntimeHooks"] == 3.0
    assert not made.strategies.hooks.unset_cpu_quota
    off = plan("--enable-nri-runtime-hook=false", "--runtime-hooks-server=off").settings.hooks
    assert (off.nri, off.server) == (None, "off")


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("--runtime-hooks-failure-policy=Maybe", "it is Ignore or Fail"),
        ("--runtime-hooks-plugin-failure-policy=fail", "it is Ignore or Fail"),
        ("--runtime-hooks-server=perhaps", "it is auto, on or off"),
        ("--runtime-hooks-nri-plugin-index=7", "it has two digits"),
        ("--runtime-hooks-disable-stages=PreCreate", "there is no stage PreCreate"),
    ],
)
def test_flags_of_hooks_that_mean_nothing_are_refused(flag: str, words: str) -> None:
    assert words in refused(flag)
