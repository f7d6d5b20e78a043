"""A backend: a served model under one configuration, and the fingerprint of what answered there."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, ConfigDict, Field

from agentprof.records.scenario import Written

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_KEY_IN_DISGUISE = re.compile(r"(?=.*[a-z])(?=.*[0-9])[A-Za-z0-9]{20,}|(hf|sk|gsk|xai|ghp|nvapi)_.{16,}")
_SET_BY_REQUESTS = ("model", "messages", "tools", "stream")


def _check_variable(value: str) -> str:
    # The value may be a key put here by mistake: it is never shown.
    if not _VARIABLE.fullmatch(value) or _KEY_IN_DISGUISE.fullmatch(value):
        raise ValueError(
            "expected the name of an environment variable, such as OLD_KEY; the key itself doesn't belong in a file "
            "(what was found isn't shown)"
        )
    return value


def _check_url(value: str) -> str:
    # The value may hold a password: it is never shown.
    try:
        parts = urlsplit(value)
        has_host = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        has_host, parts = False, urlsplit("")
    if "@" in parts.netloc:
        raise ValueError("a user or password in the URL (not shown); name a variable in api_key_env instead")
    if not has_host or re.search(r"\s", value):
        raise ValueError("expected a URL such as http://127.0.0.1:8000/v1; it usually ends in /v1")
    if "?" in value or "#" in value:
        raise ValueError("a URL with ? or # (not shown); put what each request needs into extra_body")
    if parts.path.rstrip("/").endswith("/completions"):
        raise ValueError("expected the part before /chat/completions; it usually ends in /v1")
    return value


def _check_extra(value: dict[str, Any]) -> dict[str, Any]:
    reserved = [key for key in _SET_BY_REQUESTS if key in value]
    if reserved:
        raise ValueError(f"{reserved[0]} is set by each request, so it can't stand here")
    if not _is_finite(value):
        raise ValueError("holds .nan or .inf, which JSON can't say")
    return value


def _is_finite(value: object) -> bool:
    """Whether no number in it, however deep, is infinite or none."""
    if isinstance(value, dict):
        return all(_is_finite(inner) for inner in value.values())
    if isinstance(value, list):
        return all(_is_finite(inner) for inner in value)
    return not isinstance(value, float) or math.isfinite(value)


Engine = Literal["vllm", "sglang", "llama.cpp", "litellm", "openai"]


class Backend(Written):
    """Where a model is served, as people write it in backends.yaml (docs/backends.md).

    `name` comes from the key in the file. `api_key_env` names the environment variable that holds the key; the key
    itself is never stored. `extra_body` goes into every request as it is. What is written here may hold a secret by
    mistake, so errors don't show it.
    """

    model_config = ConfigDict(hide_input_in_errors=True)

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=60)]
    base_url: Annotated[str, AfterValidator(_check_url)]
    model: Annotated[str, Field(min_length=1)]
    api_key_env: Annotated[str, AfterValidator(_check_variable)] | None = None
    extra_body: Annotated[dict[str, Any], AfterValidator(_check_extra)] = Field(default_factory=dict)
    labels: dict[str, str] = Field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What answered at a backend: engine, version, and the settings that it tells of itself."""

    engine: Engine
    version: str | None = None
    settings: Mapping[str, str | int | float | bool] = field(default_factory=dict)
