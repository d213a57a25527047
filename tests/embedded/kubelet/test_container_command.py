"""What a container's command says about how long it runs and how it ends."""

from __future__ import annotations

import pytest

from koord.embedded.kubelet.pod_behaviour import CommandOutcome, command_outcome


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
