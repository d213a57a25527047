"""Every story, on the real kube-apiserver and on ours: the same status codes and the same bodies."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.koord_up_process import koord_up
from tests.real.conformance.chosen import CHOSEN
from tests.real.conformance.player import Server, differences
from tests.real.conformance.stories import ALL
from tests.real.conformance.story import Story
from tools.controlplane import ControlPlane

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def ours() -> Iterator[Server]:
    with koord_up("--nodes", "0", "--components", "") as running:
        yield Server(running.url, running.token, running.ssl())


@pytest.mark.parametrize("story", ALL, ids=[story.id for story in ALL])
async def test_both_servers_tell_the_same_story(story: Story, plane: ControlPlane, ours: Server) -> None:
    found = await differences(story, Server(plane.url, plane.token, plane.ssl()), ours)
    known = {key.split("/")[1] for key in CHOSEN if key.split("/")[0] == story.id}
    surprising = {step: lines for step, lines in found.items() if step not in known}
    assert not surprising, "\n".join(
        f"{story.id}/{step}: {line}" for step, lines in surprising.items() for line in lines
    )
    assert known <= set(found), f"no longer different, remove from CHOSEN: {sorted(known - set(found))}"


def test_there_are_enough_requests() -> None:
    assert sum(len(story.steps) for story in ALL) >= 200
