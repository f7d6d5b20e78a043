"""`agentprof serve sim`: a server with the figures of a profile."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import click
import uvloop

from agentprof.serve.sim import Profile, SimOptions, load_profile, serve_until


@click.command("sim")
@click.argument("profile", type=click.Path(dir_okay=False, path_type=Path), metavar="PROFILE.yaml")
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Address to listen on; any but 127.0.0.1 is open to others."
)
@click.option("--port", default=0, type=click.IntRange(0, 65535), help="Port; 0 takes a free one and prints it.")
@click.option(
    "--log", type=click.Path(dir_okay=False, path_type=Path), help="Write the true timeline of each request here."
)
@click.option("--seed", default=0, show_default=True, help="Seed of every draw: replies, acceptance, jitter, faults.")
@click.option("--time-scale", default=1.0, show_default=True, help="Divide all times: 10 runs ten times as fast.")
def sim(profile: Path, host: str, port: int, log: Path | None, seed: int, time_scale: float) -> None:
    """Serve a simulated model that is as fast, and as faulty, as PROFILE.yaml says.

    \b
    Try what an agent would feel like on a backend with these figures:
      agentprof serve sim scenarios/backends/one-gpu-speculative.yaml --port 8000
    docs/simulator.md explains the profile. Ends with Ctrl-C.
    """
    options = SimOptions(host=host, port=port, log=log, seed=seed, time_scale=time_scale)
    uvloop.run(_serve(load_profile(profile), options))


async def _serve(profile: Profile, options: SimOptions) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)

    def tell(base_url: str) -> None:
        click.echo(f"{profile.name}: model {profile.model} at {base_url} (Ctrl-C ends it)")

    await serve_until(profile, options, tell, stop)
