"""koord-scheduler's command line: what it refuses, with which words and exit codes, and the configuration it writes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from koord.cli.daemons.flag_set import FlagValues
from koord.cli.daemons.koord_scheduler import run_scheduler, sync_barrier_settings
from koord.cli.daemons.lifecycle import run_program
from koord.cli.daemons.scheduler_config import SchedulerConfigured, scheduler_configuration, scheduler_flags
from koord.scheduler.sync_barrier import SyncBarrierSettings

FILE = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection: {resourceName: mine, leaseDuration: 30s}
podMaxBackoffSeconds: 20
profiles: [{schedulerName: mine}]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    # DynamicResources is on by default and may not be there yet.
    plugins = {"multiPoint": {"disabled": [{"name": "DynamicResources"}]}, "preBind": {"disabled": [{"name": "*"}]}}
    path.write_text(
        yaml.safe_dump({**yaml.safe_load(FILE), "profiles": [{"schedulerName": "mine", "plugins": plugins}]})
    )
    return path


def command(*argv: str) -> int:
    return run_program(scheduler_flags(), argv, lambda values, logs: run_scheduler(values, logs, {}))


def values(*argv: str) -> FlagValues:
    read = scheduler_flags().parse(argv)
    assert isinstance(read, FlagValues)
    return read


def made(*argv: str) -> SchedulerConfigured:
    found = scheduler_configuration(values(*argv))
    assert isinstance(found, SchedulerConfigured), found
    return found


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        pytest.param(["--nosuch"], "Error: unknown flag: --nosuch (see koord-scheduler --help)", id="flag"),
        pytest.param(
            ["now"],
            'Error: "koord-scheduler" does not take any arguments, got ["now"] (see koord-scheduler --help)',
            id="argument",
        ),
        pytest.param(
            ["--config=/no/such"], "koord-scheduler: --config: open /no/such: no such file or directory", id="file"
        ),
        pytest.param(
            ["--secure-port=99999"],
            "koord-scheduler: --secure-port 99999 must be between 0 and 65535, inclusive. 0 for turning off the port",
            id="port",
        ),
        pytest.param(
            ["--feature-gates=CompatiblePodDisruptionBudget=true"],
            "koord-scheduler: --feature-gates: CompatiblePodDisruptionBudget=true is not built: "
            "servers of Kubernetes 1.22 and older are not supported",
            id="gate-that-is-not-built",
        ),
        pytest.param(
            ["--controller-plugins=*,-Nobody"],
            "koord-scheduler: --controller-plugins -Nobody: no such plugin has controllers; "
            "known are Coscheduling, DeviceShare, ElasticQuota, Reservation",
            id="controllers-of-nobody",
        ),
        pytest.param(["--logging-format=xml"], 'format: Invalid value: "xml": Unsupported log format', id="format"),
        pytest.param(
            ["--tls-cert-file=a"],
            "koord-scheduler: --tls-cert-file and --tls-private-key-file need each other",
            id="half-a-pair",
        ),
        pytest.param(
            ["--secure-port=0"],
            "koord-scheduler: there is no kubeconfig, and this is not a pod of a cluster; "
            "name one with --kubeconfig, clientConnection.kubeconfig or KUBECONFIG",
            id="no-server",
        ),
        pytest.param(
            ["--allow-metric-labels=a=b"],
            "koord-scheduler: --allow-metric-labels a: must be written as metric,label=values",
            id="labels",
        ),
    ],
)
def test_refusals_are_one_line_and_exit_code_one(
    argv: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(*argv) == 1
    assert capsys.readouterr().err.splitlines()[-1] == line


def test_every_mistake_of_a_file_has_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(FILE.replace("20", "0").replace("30s", "5s"))
    assert command(f"--config={path}") == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) > 1
    assert all(line.startswith(f"koord-scheduler: --config {path}: ") for line in lines)
    fields = " ".join(lines)
    assert "podMaxBackoffSeconds" in fields
    assert "leaderElection.leaseDuration" in fields


def test_gates_are_known_or_refused() -> None:
    assert made("--feature-gates=MultiQuotaTree=true").assembly.gates["MultiQuotaTree"] is True
    assert made("--feature-gates=", "--feature-gates=kube:AllAlpha=false").assembly.gates["MultiQuotaTree"] is False
    notes = made("--feature-gates=kube:APIServerIdentity=true").notes
    assert "feature gates of Kubernetes that change nothing here: APIServerIdentity" in notes
    wrong = scheduler_configuration(values("--feature-gates=Nope=true,MultiQuotaTree=maybe"))
    assert isinstance(wrong, list)
    unknown, unreadable = wrong
    assert unknown.startswith("--feature-gates: Nope is not a known feature gate; known are ")
    assert unreadable == '--feature-gates: MultiQuotaTree must be true or false, not "maybe"'


def test_the_sync_barrier_is_where_flags_say(file: Path) -> None:
    flags = ("--sync-barrier-pod-namespace=a", "--sync-barrier-pod-name=b", "--sync-hard-timeout=5s")
    given = (f"--config={file}", "--feature-gates=SyncBarrier=true", *flags)
    found = made(*given)
    assert not any("sync" in note for note in found.notes)
    assert sync_barrier_settings(values(*given), found.assembly) == SyncBarrierSettings(
        namespace="a", name="b", lease="mine", timeout_s=5.0
    )
    assert sync_barrier_settings(values(), made().assembly) == SyncBarrierSettings()


def test_flags_of_the_sync_barrier_need_its_gate() -> None:
    notes = made("--sync-hard-timeout=5s", "--sync-barrier-pod-name=b").notes
    assert [note for note in notes if "SyncBarrier" in note] == [
        "--sync-barrier-pod-name changes nothing without the feature gate SyncBarrier",
        "--sync-hard-timeout changes nothing without the feature gate SyncBarrier",
    ]


def test_lease_flags_win_over_the_file_and_others_do_not(file: Path) -> None:
    found = made(f"--config={file}", "--leader-elect-lease-duration=1m30s", "--kube-api-qps=7", "--kubeconfig=x")
    config = found.assembly.config
    assert config.leader_election.lease_duration == "1m30s"
    assert config.leader_election.resource_name == "mine"
    assert config.client_connection.qps == 50
    assert "--kube-api-qps is ignored: with --config the file decides" in found.notes


def test_kubeconfig_is_used_where_the_file_names_none(file: Path) -> None:
    found = made(f"--config={file}", "--kubeconfig=mine")
    assert found.assembly.config.client_connection.kubeconfig == "mine"
    assert not any("--kubeconfig" in note for note in found.notes)
    file.write_text(file.read_text() + "\nclientConnection: {kubeconfig: of-the-file}\n")
    found = made(f"--config={file}", "--kubeconfig=mine")
    assert found.assembly.config.client_connection.kubeconfig == "of-the-file"
    assert "--kubeconfig is ignored: with --config the file decides" in found.notes


def test_without_a_file_the_shipped_profile_runs() -> None:
    config = made("--kube-api-qps=7", "--kube-api-burst=9", "--kubeconfig=x", "--leader-elect=false").assembly.config
    assert [profile.scheduler_name for profile in config.profiles] == ["koord-scheduler"]
    assert (config.leader_election.resource_name, config.leader_election.resource_namespace) == (
        "koord-scheduler",
        "koordinator-system",
    )
    assert config.leader_election.leader_elect is False
    assert (config.client_connection.qps, config.client_connection.burst) == (7, 9)
    assert config.client_connection.kubeconfig == "x"


def test_the_written_configuration_reads_back_the_same(file: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    assert command(f"--config={file}", f"--write-config-to={first}") == 0
    assert yaml.safe_load(first.read_text())["podMaxBackoffSeconds"] == 20
    assert command(f"--config={first}", f"--write-config-to={second}") == 0
    assert first.read_text() == second.read_text()


def test_a_place_that_cannot_be_written_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert command("--write-config-to=/no/such/place") == 1
    assert "--write-config-to: open /no/such/place: no such file or directory" in capsys.readouterr().err


def test_flags_without_effect_are_told(tmp_path: Path) -> None:
    asked = [
        sys.executable,
        "-m",
        "koord.cli.daemons.koord_scheduler",
        "--disable-http2-serving",
        "--debug-diagnosis-blocking",
    ]
    done = subprocess.run([*asked, f"--write-config-to={tmp_path / 'c'}"], capture_output=True, text=True, check=True)
    assert "--disable-http2-serving has no effect: the port speaks HTTP/1.1" in done.stderr
    assert "--debug-diagnosis-blocking has no effect" in done.stderr


def test_help_has_upstreams_sections(capsys: pytest.CaptureFixture[str]) -> None:
    assert command("--help") == 0
    text = capsys.readouterr().out
    titles = [line for line in text.splitlines() if line.endswith(" flags:")]
    assert titles == [
        "Misc flags:",
        "Secure serving flags:",
        "Authentication flags:",
        "Authorization flags:",
        "Deprecated flags:",
        "Leader election flags:",
        "Feature gate flags:",
        "Metrics flags:",
        "Koordinator flags:",
        "Logs flags:",
        "Global flags:",
    ]
    assert "MultiQuotaTree=true|false (ALPHA - default=false)" in text
    assert command("--version") == 0
    assert capsys.readouterr().out.startswith("koord-scheduler v")


def test_flags_without_effect_are_in_the_documentation() -> None:
    page = Path(__file__).parents[3] / "docs" / "koord-scheduler.md"
    told = page.read_text().partition("## Flags without effect")[2]
    for flag in scheduler_flags().flags.values():
        assert (f"`--{flag.name}`" in told) is bool(flag.no_effect_reason), flag.name
        assert flag.no_effect_reason in told
