"""A scenario: one coding task, as people write it in YAML (docs/scenarios.md)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from agentprof.records.durations import parse_duration

DurationNs = Annotated[int, BeforeValidator(parse_duration)]
"""Nanoseconds, written as `250ms`, `60s`, `10m` or `1h`."""

Mode = Literal["scripted", "live"]
Length = Literal["forced", "free"]
History = Literal["recorded", "generated"]
Cache = Literal["production", "isolated", "shared"]


class Written(BaseModel):
    """Base of what people write: unknown keys are errors, values don't change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ToolUse(Written):
    """One scripted tool call, written `{bash: {command: …}}`."""

    name: str
    arguments: dict[str, Any]


class Step(Written):
    """One scripted step: one model call, and the tools that it asks for or the answer that it gives."""

    reasoning: str | None = None
    text: str | None = None
    calls: tuple[ToolUse, ...] = ()
    answer: str | None = None
    output_tokens: Annotated[int, Field(ge=1)] | None = None


class Turn(Written):
    """What the user says, the pause before it, and what the agent then does (ignored in live mode)."""

    user: str
    think: DurationNs = 0
    steps: tuple[Step, ...] = ()


class Limits(Written):
    """What a session may spend. Times in nanoseconds; memory and output per tool call, in bytes."""

    session: DurationNs = 600_000_000_000
    steps: Annotated[int, Field(ge=1)] = 40
    tool: DurationNs = 60_000_000_000
    output_tokens: Annotated[int, Field(ge=1)] = 4096
    tool_output_bytes: Annotated[int, Field(ge=256)] = 16_384
    tool_memory_mib: Annotated[int, Field(ge=64)] = 4096


class Sampling(Written):
    """What is asked of the sampler; absent values aren't sent."""

    temperature: Annotated[float, Field(ge=0)] | None = 0.0
    seed: int | None = 7


class Scenario(Written):
    """One coding task: prompts, tools, workspace, trajectory, checks.

    `workspace` and `system` are paths relative to the scenario file as written; the loader makes `workspace`
    absolute and puts the prompt's text in `system_text`. `source` is the file, `digest` the SHA-256 of all that it
    stands for (file, prompt, workspace).
    """

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$", max_length=60)]
    description: str = ""
    workspace: Path
    system: Path
    tools: tuple[str, ...]
    mode: Mode = "scripted"
    sampling: Sampling = Sampling()
    limits: Limits = Limits()
    length: Length = "forced"
    history: History = "recorded"
    reasoning: Literal["echo", "drop"] = "drop"
    cache: Cache = "production"
    turns: Annotated[tuple[Turn, ...], Field(min_length=1)]
    checks: tuple[str, ...] = ()

    system_text: str = ""
    source: Path = Path()
    digest: str = ""
