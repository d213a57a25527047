"""What a container's command says about how long it runs and how it ends."""

from __future__ import annotations

import pytest

from koord.embedded.kubelet.container_command import CommandOutcome, command_outcome


@pytest.mark.parametrize(
    ("argv", "outcome"),
    [
        (["sleep", "300"], CommandOutcome(300.0)),
        (["/bin/sleep", "1.5m", "30"], CommandOutcome(120.0)),
        (["sleep", "infinity"], CommandOutcome(None)),
        (["true"], CommandOutcome(0.0)),
        (["/bin/false"], CommandOutcome(0.0, 1)),
        (["tail", "-f", "/dev/null"], CommandOutcome(None)),
        (["sh", "-c", "sleep 5"], CommandOutcome(5.0)),
        (["/bin/bash", "-ec", "sleep 1h"], CommandOutcome(3600.0)),
        (["sh", "-c", "echo 'a; b' && sleep 2; sleep 3\nexit 7"], CommandOutcome(5.0, 7)),
        (["sh", "-c", "exit 7; sleep 60"], CommandOutcome(0.0, 7)),
        (["sh", "-c", "false && sleep 60"], CommandOutcome(0.0, 1)),
        (["sh", "-c", "false; sleep 60"], CommandOutcome(60.0)),
        (["sh", "-c", "exec sleep 9"], CommandOutcome(9.0)),
        (["sh", "-c", "while true; do echo x; sleep 1; done"], CommandOutcome(None)),
        (["sh", "-c", "echo $HOSTNAME; sleep 4"], CommandOutcome(4.0)),
        (["sh", "-c", "sleep $SECONDS_TO_RUN"], None),
        (["sh", "-c", "if true; then sleep 3; else exit 4; fi"], CommandOutcome(3.0)),
        (["sh", "-c", "if false\nthen exit 4\nelif [ 2 -gt 1 ]; then exit 5; fi; exit 6"], CommandOutcome(0.0, 5)),
        (["sh", "-c", "if false; then exit 4; fi"], CommandOutcome(0.0)),
        (["sh", "-c", "if [ -z x ]; then if true; then exit 1; fi; else exit 2; fi"], CommandOutcome(0.0, 2)),
        (["sh", "-c", "[ ! a = b ] && exit $(( 7 * (2 + 1) % 5 ))"], CommandOutcome(0.0, 1)),
        (["sh", "-c", "exit $(( 1 / 0 ))"], None),
        (["sh", "-c", "if true; then exit 1"], None),
        (["sh", "-c", "fi"], None),
        (["sh", "-c", "sleep 5 | cat"], None),
        (["sh", "-c", "sleep 5 || true"], None),
        (["sh", "-c", "sleep 5 & wait"], None),
        (["sh", "-c", "make && sleep 5"], None),
        (["sh", "-c", "echo 'open"], None),
        (["sleep", "soon"], None),
        (["sleep"], None),
        (["sh"], None),
        (["nginx", "-g", "daemon off;"], None),
        ([], None),
    ],
    ids=str,
)
def test_outcome(argv: list[str], outcome: CommandOutcome | None) -> None:
    assert command_outcome(argv, ()) == outcome
    assert command_outcome(argv[:1], argv[1:]) == outcome


def test_variables_of_the_container() -> None:
    script = "if [ $(expr ${INDEX} % 2) -ne 0 ]; then\n exit 1\nelse\n exit 0\nfi"
    assert [command_outcome(["sh", "-c"], [script], {"INDEX": str(number)}) for number in range(3)] == [
        CommandOutcome(0.0, 0),
        CommandOutcome(0.0, 1),
        CommandOutcome(0.0, 0),
    ]
    assert command_outcome(["sh", "-c"], [script]) is None


def test_marker_files_are_there_in_the_next_run() -> None:
    script = "if [[ -r /data/foo-$N ]]\nthen\nexit 0\nelse\ntouch /data/foo-$N\nexit 42\nfi"
    first = command_outcome(["/bin/sh", "-c"], [script], {"N": "3"})
    assert first == CommandOutcome(0.0, 42, frozenset({"/data/foo-3"}))
    again = command_outcome(["/bin/sh", "-c"], [script], {"N": "3"}, first.files)
    assert again == CommandOutcome(0.0, 0, first.files)
    assert command_outcome(["sh", "-c", "rm /data/foo-3"], (), {}, first.files) == CommandOutcome(0.0)
