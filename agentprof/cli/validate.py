"""`agentprof validate`: are these files right?"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import click

from agentprof.errors import ExitCode, InputError
from agentprof.records.backend import Backend
from agentprof.records.document import read_document
from agentprof.records.loading import load_written
from agentprof.records.scenario import Scenario
from agentprof.serve.sim import Profile, check_certificate, load_profile

_PROFILE_KEYS = Profile.model_fields.keys() - Scenario.model_fields.keys()


@click.command(epilog="\b\nExample:\n  agentprof validate scenarios/*.yaml backends.yaml")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE…")
def validate(files: tuple[Path, ...]) -> None:
    """Check scenario and backend files and profiles of simulated servers, and say what each one holds.

    A file with a `backends` key is read as backends, one without `turns` but with a profile's keys (`prefill`, `decode`
    …) as a profile, any other as a scenario. Problems go to standard error, one line each, with the file and line; the
    exit code is then 2.
    """
    is_bad = False
    for path in files:
        try:
            written = _load(path)
        except InputError as error:
            is_bad = True
            click.echo(str(error), err=True)
        else:
            click.echo(f"{path}: {_summary(written)}")
    sys.exit(ExitCode.BAD_INPUT if is_bad else ExitCode.OK)


def _load(path: Path) -> Scenario | Mapping[str, Backend] | Profile:
    keys = read_document(path).data.keys()
    is_profile = keys.isdisjoint({"backends", "turns"}) and not keys.isdisjoint(_PROFILE_KEYS)
    if not is_profile:
        return load_written(path)
    profile = load_profile(path)
    check_certificate(profile)
    return profile


def _summary(written: Scenario | Mapping[str, Backend] | Profile) -> str:
    if isinstance(written, Profile):
        what = f"simulates {written.engine} serving {written.model}"
        return f"profile {written.name}: {what}; agentprof serve sim runs it"
    if not isinstance(written, Scenario):
        names = ", ".join(f"{backend.name} ({backend.model} at {backend.base_url})" for backend in written.values())
        return f"{_count(len(written), 'backend')}: {names}"
    steps = sum(len(turn.steps) for turn in written.turns)
    parts = [
        _count(len(written.turns), "turn"),
        _count(steps, "step") if written.mode == "scripted" else "steps up to the model",
        f"tools {', '.join(written.tools)}" if written.tools else "no tools",
        _count(len(written.checks), "check"),
    ]
    return f"{written.mode} scenario {written.name}: {'; '.join(parts)}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
