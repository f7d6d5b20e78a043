"""Whether a benchmark is of the backend that a run used."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from agentprof.analysis.frames import SessionFrame
from agentprof.records.benchmark import Benchmark


def mismatches(benchmark: Benchmark, about: Mapping[str, Any], sessions: Sequence[SessionFrame]) -> list[str]:
    """What tells the benchmark's backend from the run's, both values each; empty where nothing does.

    about: what run.json says of the backend. Fingerprints and labels are compared where both are known; model names
    otherwise, by their last part without case and punctuation.
    """
    fingerprint = about.get("fingerprint")
    if isinstance(fingerprint, Mapping) and benchmark.fingerprint is not None:
        theirs, ours = _flat(benchmark.fingerprint), _flat(fingerprint)
        labels = about.get("labels")
        theirs |= {f"label {key}": value for key, value in benchmark.labels.items()}
        ours |= {f"label {key}": value for key, value in (labels if isinstance(labels, Mapping) else {}).items()}
        theirs["model"], ours["model"] = benchmark.model, about.get("model")
        return [
            f"{key} is {_shown(theirs.get(key))} in the benchmark and {_shown(ours.get(key))} in the run"
            for key in sorted(theirs.keys() | ours.keys())
            if theirs.get(key) != ours.get(key)
        ]
    names = run_models(about, sessions)
    if benchmark.model is None or not names or any(_is_same_model(benchmark.model, name) for name in names):
        return []
    return [f"model is {benchmark.model} in the benchmark and {', '.join(names)} in the run"]


def run_models(about: Mapping[str, Any], sessions: Sequence[SessionFrame]) -> list[str]:
    """Names that the run has for its model: as its backend is written, else as its calls ask for it."""
    model = about.get("model")
    if isinstance(model, str):
        return [model]
    return sorted({call.model for session in sessions for call in session.calls if call.model})


def is_verified(benchmark: Benchmark, about: Mapping[str, Any]) -> bool:
    """Whether both sides have fingerprints, so that more than a model's name was compared."""
    return benchmark.fingerprint is not None and isinstance(about.get("fingerprint"), Mapping)


def _flat(values: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat.update(_flat(value))
        else:
            flat[key] = value
    return flat


def _shown(value: Any) -> str:
    return "not known" if value is None else str(value)


def _is_same_model(one: str, other: str) -> bool:
    """Served names are often shortened: one may begin or end with the other."""
    first, second = _plain(one), _plain(other)
    shorter, longer = sorted((first, second), key=len)
    return bool(shorter) and (longer.startswith(shorter) or longer.endswith(shorter))


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.rstrip("/").rsplit("/", 1)[-1].lower())
