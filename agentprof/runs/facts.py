"""What run.json says of a run before its first session: plan, scenarios, backends, options, host."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from agentprof.records.backend import Backend, Fingerprint
from agentprof.records.scenario import Scenario
from agentprof.runs.plan import PlannedSession

_SECRET_NAME = re.compile(r"api_?key|secret|password|authorization|bearer|credential", re.IGNORECASE)
_HIDDEN = "(not kept)"


def describe_run(
    command: str,
    name: str,
    plan: Sequence[PlannedSession],
    scenarios: Mapping[str, Mapping[str, Any]],
    backends: Mapping[str, tuple[Backend, Fingerprint]],
    options: Mapping[str, Any],
) -> dict[str, Any]:
    """The facts of a run that is about to begin, as values that JSON takes; no keys, no headers."""
    return {
        "name": name,
        "created": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "command": command,
        "is_finished": False,
        "planned": [asdict(session) for session in plan],
        "scenarios": {scenario: dict(described) for scenario, described in scenarios.items()},
        "backends": {
            backend_name: {
                "base_url": backend.base_url,
                "model": backend.model,
                "labels": backend.labels,
                "extra_body": without_secrets(backend.extra_body),
                "fingerprint": asdict(found),
            }
            for backend_name, (backend, found) in backends.items()
        },
        "options": dict(options),
        "host": {
            "system": platform.system(),
            "release": platform.release(),
            "machine": platform.machine(),
            "python": platform.python_version(),
            "cpus": os.cpu_count() or 1,
        },
    }


def describe_scenario(scenario: Scenario) -> dict[str, Any]:
    """What makes two replays of a scenario comparable."""
    return {
        "digest": scenario.digest,
        "mode": scenario.mode,
        "length": scenario.length,
        "history": scenario.history,
        "cache": scenario.cache,
    }


def without_secrets(value: Any) -> Any:
    """A JSON value without what its names say is secret, such as `api_key`."""
    if isinstance(value, Mapping):
        return {
            key: _HIDDEN if isinstance(key, str) and _SECRET_NAME.search(key) else without_secrets(inner)
            for key, inner in value.items()
        }
    return [without_secrets(inner) for inner in value] if isinstance(value, list) else value
