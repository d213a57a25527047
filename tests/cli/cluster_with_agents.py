"""Run `koord up` with node agents in this process and in virtual time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from koord.cli.up.components import choose_components
from koord.embedded.cluster import ClusterSettings, EmbeddedCluster
from koord.kube.client.typed_client import Client
from koord.telemetry.clock import LoopClock, run_virtual

Story = Callable[[Client, LoopClock], Awaitable[None]]


def with_agents(story: Story, profile: Path | None = None, /, *, agents: str | None = "true", **settings: str) -> None:
    """Run the story on two nodes, or those of the profile, that have reported; underscores in names of settings stand
    for dots. `agents` None leaves it to `koord up` whether they run.
    """

    async def main(clock: LoopClock) -> None:
        chosen = {name.replace("_", "."): value for name, value in settings.items()}
        stated = {} if agents is None else {"nodes.agents": agents}
        made = choose_components("all", nodes=2, profile=profile, settings=stated | chosen)
        assert not isinstance(made, str)
        cluster = EmbeddedCluster(ClusterSettings(http=False, seed=1), made, clock=clock)
        await cluster.start()
        assert cluster.client is not None
        try:
            await clock.sleep(40)
            await story(cluster.client, clock)
        finally:
            await cluster.stop()

    run_virtual(main)
