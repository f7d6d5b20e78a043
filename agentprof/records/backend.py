"""A backend: a served model under one configuration, and the fingerprint of what answered there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field

from agentprof.records.scenario import Written

Engine = Literal["vllm", "sglang", "llama.cpp", "litellm", "openai"]


class Backend(Written):
    """Where a model is served, as people write it in backends.yaml (docs/backends.md).

    `name` comes from the key in the file. `api_key_env` names the environment variable that holds the key; the key
    itself is never stored. `extra_body` goes into every request as it is.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=60)]
    base_url: Annotated[str, Field(pattern=r"^https?://")]
    model: str
    api_key_env: str | None = None
    extra_body: dict[str, Any] = Field(default_factory=dict)
    labels: dict[str, str] = Field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What answered at a backend: engine, version, and the settings that it tells of itself."""

    engine: Engine
    version: str | None = None
    settings: Mapping[str, str | int | float | bool] = field(default_factory=dict)
