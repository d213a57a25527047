"""`koord config check`: which lines it prints, where it points, and how it ends."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from koord.cli.commands.config import check_text
from koord.cli.main import cli

GOOD = """\
apiVersion: v1
kind: ConfigMap
metadata: {name: slo-controller-config, namespace: koordinator-system}
data:
  colocation-config: |
    {"enable": true, "nodeConfigs": [{"name": "gpu", "nodeSelector": {"matchLabels": {"pool": "gpu"}}}]}
  cpu-burst-config: '{"clusterStrategy": {"policy": "auto"}}'
  host-application-config: '{"applications": [{"name": "nginx"}]}'
---
apiVersion: v1
kind: Service
metadata: {name: something-else}
"""

BAD = """\
apiVersion: v1
kind: ConfigMap
metadata:
  name: slo-controller-config
data:
  resource-threshold-config: |
    {
      "clusterStrategy": {
        "enable": true,
        "cpuSuppressThresholdPercent": 150,
        "cpuSupressPolicy": "cpuset",
        "memoryEvictThresholdPercent": 70
      }
    }
  cpu-burst-config: |
    {
      "clusterStrategy": {"policy": "auto",}
    }
  system-config: {"clusterStrategy": {}}
"""

DESCHEDULER = """\
apiVersion: descheduler/v1alpha2
kind: DeschedulerConfiguration
deschedulingInterval: 60s
profiles:
- name: koord-descheduler
  pluginConfig:
  - name: LowNodeLoad
    args:
      apiVersion: descheduler/v1alpha2
      kind: LowNodeLoadArgs
      numberOfNodes: -1
"""

SCHEDULER = """\
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
percentageOfNodesToScore: 101
profiles:
- schedulerName: a
- schedulerName: a
"""


@pytest.fixture(autouse=True)
def _somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def check(text: str, *options: str) -> Result:
    Path("it.yaml").write_text(text)
    return CliRunner().invoke(cli, ["config", "check", "it.yaml", *options])


def test_a_good_file_is_summed_up() -> None:
    result = check(GOOD)
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[0] == "it.yaml: OK"
    assert lines[1] == "  ConfigMap koordinator-system/slo-controller-config"
    assert [line.split(None, 1)[1] for line in lines[2:]] == [
        "on; other settings for the nodes of gpu",
        "not set: the defaults",
        "not set: the defaults",
        "policy auto",
        "not set: the defaults",
        "host applications nginx",
        "not set: the defaults",
        "not set: the defaults",
        "not set: the defaults",
    ]
    assert check(GOOD, "--quiet").output == ""


def test_interference_is_summed_up_by_its_action() -> None:
    stated = {"": "action report", '"action": "evict"': "action evict", '"enable": false': "off"}
    for text, wanted in stated.items():
        file = (
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: slo-controller-config}\n"
            'data:\n  interference-config: |\n    {"clusterStrategy": {' + text + "}}\n"
        )
        assert check(file).output.splitlines()[-1].split(None, 1)[1] == wanted


def test_every_problem_has_a_line_that_points_to_it() -> None:
    result = check(BAD)
    assert result.exit_code == 1
    assert result.output.splitlines() == [
        "it.yaml:10: error: resource-threshold-config: clusterStrategy.cpuSuppressThresholdPercent is 150, "
        "must be from 1 to 100",
        "it.yaml:11: error: resource-threshold-config: clusterStrategy.cpuSupressPolicy is not a known setting and has "
        "no effect: did you mean cpuSuppressPolicy?",
        "it.yaml:12: warning: resource-threshold-config: clusterStrategy.memoryEvictThresholdPercent stands without "
        "memoryEvictLowerPercent; refused where the ConfigMap webhook is on",
        "it.yaml:17: error: cpu-burst-config is not JSON: trailing comma in object at line 2, column 40",
        "it.yaml:19: error: system-config must be text: put it in quotes or in a block (|)",
        "it.yaml: 4 errors, 1 warning",
    ]


def test_warnings_fail_only_when_asked_to() -> None:
    lonely = GOOD.replace("cpu-burst-config:", "resource-qos-config: '{}'\n  cpu-burst-config:")
    relaxed = check(lonely)
    assert relaxed.exit_code == 0
    assert "it.yaml: 1 warning" in relaxed.output
    assert check(lonely, "--strict").exit_code == 1


def test_a_descheduler_file() -> None:
    result = check(DESCHEDULER)
    assert result.exit_code == 1
    assert result.output.startswith(
        "it.yaml:11: error: profiles[0].pluginConfig[0].args.numberOfNodes is -1, must be 0 or greater\n"
    )
    good = check(DESCHEDULER.replace("-1", "1"))
    assert good.exit_code == 0, good.output
    assert "profile koord-descheduler: arguments for LowNodeLoad" in good.output
    assert (
        "it.yaml:9: warning: profiles[0].pluginConfig[0].args are of LowNodeLoad, which is not enabled" in good.output
    )
    imported = "  plugins: {deschedule: {enabled: [{name: PodLifeTime}]}}\n"
    unmade = check(DESCHEDULER.replace("-1", "1") + imported)
    assert unmade.exit_code == 1
    assert "PodLifeTime" in unmade.output
    assert "maxPodLifeTimeSeconds" in unmade.output
    old = check(DESCHEDULER.replace("descheduler/v1alpha2\nkind: Desch", "descheduler/v1\nkind: Desch"))
    assert 'it.yaml:1: error: apiVersion is "descheduler/v1", must be descheduler/v1alpha2' in old.output


def test_a_component_inside_a_configmap() -> None:
    inner = "".join(f"    {line}\n" for line in DESCHEDULER.splitlines())
    text = (
        f"kind: ConfigMap\nmetadata: {{name: koord-descheduler-config}}\ndata:\n  koord-descheduler-config: |\n{inner}"
    )
    result = check(text)
    assert result.exit_code == 1
    assert result.output.startswith("it.yaml:15: error: koord-descheduler-config: profiles[0].pluginConfig[0].args.")


def test_a_scheduler_file() -> None:
    result = check(SCHEDULER)
    assert result.exit_code == 1
    assert "it.yaml:3: error: percentageOfNodesToScore is 101, must be from 0 to 100" in result.output
    assert 'it.yaml:6: error: profiles[1].schedulerName is "a", is a duplicate' in result.output
    misspelt = check(SCHEDULER.replace("percentageOfNodesToScore: 101", "percentageOfNodes: 10"))
    assert "it.yaml:3: error: percentageOfNodes is not a known field" in misspelt.output


def test_a_key_that_is_given_twice() -> None:
    twice = check(GOOD.replace("  cpu-burst-config:", "  colocation-config: ''\n  cpu-burst-config:"))
    assert twice.exit_code == 1
    assert "it.yaml:7: error: data.colocation-config is given twice, and only the last one counts" in twice.output
    inside = check(GOOD.replace('{"enable": true,', '{"enable": true,\n    "enable": false,'))
    assert inside.exit_code == 1
    assert "it.yaml:7: error: colocation-config: enable is given twice, and only the last one counts" in inside.output
    file = check(DESCHEDULER.replace("-1", "1") + "kind: DeschedulerConfiguration\n")
    assert "it.yaml:12: error: kind is given twice, and only the last one counts" in file.output


_WORDS = st.sampled_from(
    ["kind: ConfigMap", "kind: List", "kind: DeschedulerConfiguration", "kind: KubeSchedulerConfiguration", "items:",
     "metadata: {name: slo-controller-config}", "data:", "  colocation-config: |", "    {", "  system-config: '{}'",
     "apiVersion: descheduler/v1alpha2", "profiles: [1]", "data: x", "- kind: ConfigMap", "metadata: []", "---",
     "a: &a", "b: *a", "2001-13-45", "  1: 2", "x: !!float y", "\t", "kubescheduler.config.k8s.io/v1"]
)  # fmt: skip


@given(lines=st.lists(_WORDS, max_size=9))
def test_whatever_the_file_holds_there_is_a_report(lines: list[str]) -> None:
    report = check_text("it.yaml", "\n".join(lines))
    assert report.lines or report.checked
    assert all(1 <= line <= len(lines) + 1 for line, _ in report.lines)


def test_a_list_of_objects() -> None:
    text = "kind: List\nitems:\n- kind: Service\n- kind: DeschedulerConfiguration\n  apiVersion: descheduler/v1\n"
    result = check(text)
    assert result.output.startswith('it.yaml:5: error: apiVersion is "descheduler/v1"')


@pytest.mark.parametrize(
    ("text", "line"),
    [
        pytest.param("", "it.yaml:1: error: holds no configuration that can be checked: found nothing", id="empty"),
        pytest.param(
            "kind: Service\n---\n- 1\n",
            "it.yaml:1: error: holds no configuration that can be checked: found Service, a document without a kind",
            id="others",
        ),
        pytest.param("a: [1\n", "it.yaml:2: error: is not YAML: did not find expected ',' or ']'", id="no-yaml"),
        pytest.param(
            "kind: ConfigMap\nmetadata: {name: x}\n",
            "it.yaml:1: error: holds no configuration that can be checked: found ConfigMap x",
            id="another-configmap",
        ),
    ],
)
def test_files_without_a_configuration(text: str, line: str) -> None:
    result = check(text)
    assert result.exit_code == 1
    assert result.output.startswith(line)


def test_standard_input_and_files_that_cannot_be_read() -> None:
    runner = CliRunner()
    piped = runner.invoke(cli, ["config", "check", "-"], input=GOOD)
    assert piped.exit_code == 0
    assert piped.output.startswith("-: OK\n")
    missing = runner.invoke(cli, ["config", "check", "nowhere.yaml"])
    assert missing.exit_code == 2
    assert missing.output.endswith("nowhere.yaml: cannot be read: No such file or directory\n")
