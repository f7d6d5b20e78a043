"""A scenario: one coding task, as people write it in YAML (docs/scenarios.md)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from agentprof.records.durations import parse_duration

DurationNs = Annotated[int, BeforeValidator(parse_duration)]
"""Nanoseconds, written as `250ms`, `60s`, `10m` or `1h`."""

PositiveNs = Annotated[DurationNs, Field(gt=0)]
Count = Annotated[int, Field(strict=True, ge=1)]
"""A whole number from 1; text, fractions and truth values aren't taken for one."""

KEPT_OUT = frozenset({".git", "__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis"})
"""Names of a workspace that are neither copied, listed, searched, nor in a digest: they differ between machines."""

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

    @model_validator(mode="before")
    @classmethod
    def _from_tool_and_arguments(cls, written: Any) -> Any:
        if not isinstance(written, dict) or written.keys() == {"name", "arguments"}:
            return written
        if len(written) != 1:
            raise ValueError(
                f"one call names one tool; found {', '.join(written) or 'nothing'}. Give each its own dash."
            )
        ((name, arguments),) = written.items()
        if not isinstance(arguments, dict | None):
            raise ValueError(f"{name} takes its arguments by name, such as {{command: …}} or {{path: …}}")
        return {"name": name, "arguments": arguments or {}}


class Step(Written):
    """One scripted step: one model call, and the tools that it asks for or the answer that it gives.

    `text` is what the model says beside its calls; an `answer` ends the turn. `output_tokens` is the length that is
    forced in `length: forced`.
    """

    reasoning: str | None = None
    text: str | None = None
    calls: tuple[ToolUse, ...] = ()
    answer: str | None = None
    output_tokens: Count | None = None


class Turn(Written):
    """What the user says, the pause before it, and what the agent then does (ignored in live mode)."""

    user: str
    think: DurationNs = 0
    steps: tuple[Step, ...] = ()


class Limits(Written):
    """What a session may spend. Times in nanoseconds; memory and output per tool call, in bytes."""

    session: PositiveNs = 600_000_000_000
    steps: Count = 40
    tool: PositiveNs = 60_000_000_000
    output_tokens: Count = 4096
    tool_output_bytes: Annotated[int, Field(strict=True, ge=256)] = 16_384
    tool_memory_mib: Annotated[int, Field(strict=True, ge=64)] = 4096


class Sampling(Written):
    """What is asked of the sampler; absent values aren't sent."""

    temperature: Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)] | None = 0.0
    seed: Annotated[int, Field(strict=True)] | None = 7


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
