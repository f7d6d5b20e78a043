"""Scenario and backend files, read and checked: every problem of a file at once, each with its line."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from agentprof.errors import InputError
from agentprof.records.backend import Backend
from agentprof.records.document import Document, Loc, Problems, read_document, read_text
from agentprof.records.scenario import KEPT_OUT, Limits, Sampling, Scenario, Step, ToolUse, Turn, Written
from agentprof.records.trajectory import trajectory_problems
from agentprof.records.wording import missing_key, place, unknown_key, words_of

Model = TypeVar("Model", bound=Written)
Place = tuple[str, ...]

_MODELS: Mapping[Place, type[Written]] = {
    ("scenario",): Scenario,
    ("scenario", "sampling"): Sampling,
    ("scenario", "limits"): Limits,
    ("scenario", "turns", "*"): Turn,
    ("scenario", "turns", "*", "steps", "*"): Step,
    ("scenario", "turns", "*", "steps", "*", "calls", "*"): ToolUse,
}
_FILLED_BY_LOADER: Mapping[type[Written], frozenset[str]] = {
    Scenario: frozenset({"system_text", "source", "digest"}),
    Backend: frozenset({"name"}),
}
_NO_KEYS_HERE = "a key doesn't belong in this file; put it in an environment variable and name that in api_key_env"
"""Names that no copy of a workspace holds either."""


def load_scenario(path: Path, *, is_live: bool = False) -> Scenario:
    """Read a scenario file. The workspace comes back absolute, the system prompt as text, with source and digest.

    The digest is the SHA-256 of the file, the prompt, and each workspace file with its path and executable bit; it
    leaves out what no copy holds, such as `.git`. `is_live`: it will run live, so its steps are held to nothing.
    Raises InputError, one line for each problem.
    """
    return _scenario_of(read_document(path), is_live=is_live)


def load_backends(path: Path) -> dict[str, Backend]:
    """Read a backends file: backends by name, in the file's order. Raises InputError, one line for each problem."""
    return _backends_of(read_document(path))


def load_written(path: Path) -> Scenario | dict[str, Backend]:
    """Read a file of either kind; the one with a `backends` key at the top is a backends file."""
    document = read_document(path)
    return _backends_of(document) if "backends" in document.data else _scenario_of(document)


def make_backend(name: str, values: Mapping[str, Any]) -> Backend:
    """A backend from options rather than a file. Raises InputError, one line for each problem."""
    try:
        return Backend.model_validate({**values, "name": name})
    except ValidationError as error:
        lines = [f'backend "{name}": {_in_words(item, (), Backend, None)}' for item in error.errors()]
        raise InputError("\n".join(lines)) from None


def _scenario_of(document: Document, *, is_live: bool = False) -> Scenario:
    problems = Problems(document.path)
    for loc, words in trajectory_problems({**document.data, "mode": "live"} if is_live else document.data):
        problems.add(document.line_of(loc), f"{place(loc)}: {words}" if loc else words)
    scenario = _validated(Scenario, document, (), document.data, problems)
    workspace = _named_path(document, "workspace", problems)
    system = _named_path(document, "system", problems)
    problems.raise_any()
    if scenario is None or workspace is None or system is None:
        raise InputError(f"{document.path}: can't be read as a scenario")
    workspace = workspace.resolve()
    return scenario.model_copy(
        update={
            "workspace": workspace,
            "system_text": read_text(system),
            "source": document.path,
            "digest": _digest(document.path, system, workspace),
        }
    )


def _backends_of(document: Document) -> dict[str, Backend]:
    problems = Problems(document.path)
    for key in document.data:
        if key != "backends":
            problems.add(document.line_of((key,)), unknown_key(key, ["backends"]))
    written = document.data.get("backends")
    if not isinstance(written, dict) or not written:
        words = "backends: expected at least one, written `NAME: {base_url: …, model: …}`"
        problems.add(document.line_of(("backends",)), words)
        written = {}
    backends: dict[str, Backend] = {}
    for name, values in written.items():
        loc: Loc = ("backends", name)
        if not isinstance(values, dict):
            problems.add(document.line_of(loc), f"{place(loc)}: expected base_url and model as `key: value` lines")
            continue
        values = {**values, "labels": _labels_as_written(document, name, values.get("labels", {}))}
        backend = _validated(Backend, document, loc, values, problems, {"name": name})
        if backend is not None:
            backends[name] = backend
    problems.raise_any()
    return backends


def _labels_as_written(document: Document, name: str, labels: object) -> object:
    # `version: 0.10` and `speculative: off` are labels, not a number and a truth value.
    if not isinstance(labels, dict):
        return labels
    texts = {key: document.texts.get(("backends", name, "labels", key)) for key in labels}
    return {key: texts[key] or value for key, value in labels.items()}


def _validated(
    model: type[Model],
    document: Document,
    prefix: Loc,
    values: Mapping[str, Any],
    problems: Problems,
    filled: Mapping[str, Any] | None = None,
) -> Model | None:
    hidden = _FILLED_BY_LOADER[model]
    for key in values:
        if key in hidden:
            problems.add(document.line_of((*prefix, key)), _unknown_key_in_words((*prefix, key), model))
    written = {key: value for key, value in values.items() if key not in hidden}
    try:
        return model.model_validate({**written, **(filled or {})})
    except ValidationError as error:
        for item in error.errors():
            if item["type"] == "too_short" and item["input"]:
                continue  # pydantic counts the good items only; what is wrong with the others is said already
            loc = (*prefix, *item["loc"])
            problems.add(document.line_of(loc), _in_words(item, prefix, model, document.texts.get(loc)))
    return None


def _in_words(error: Mapping[str, Any], prefix: Loc, model: type[Written], text: str | None) -> str:
    loc: Loc = (*prefix, *error["loc"])
    match error["type"]:
        case "extra_forbidden":
            inner = ("scenario", *("*" if isinstance(part, int) else part for part in error["loc"][:-1]))
            return _unknown_key_in_words(loc, _MODELS.get(inner, model) if model is Scenario else model)
        case "missing":
            around, words = place(loc[:-1]), missing_key(str(loc[-1]))
        case _:
            around, words = place(loc), words_of(error, text)
    return f"{around}: {words}" if around else words


def _unknown_key_in_words(loc: Loc, model: type[Written]) -> str:
    key, around = str(loc[-1]), place(loc[:-1])
    known = [name for name in model.model_fields if name not in _FILLED_BY_LOADER.get(model, ())]
    words = unknown_key(key, known)
    if model is Backend and "key" in key.lower():
        words = f'"{key}": {_NO_KEYS_HERE}'
    return f"{around}: {words}" if around else words


def _named_path(document: Document, key: str, problems: Problems) -> Path | None:
    written = document.data.get(key)
    if not isinstance(written, str):
        return None
    path = document.path.parent / written
    wanted, is_there = ("folder", path.is_dir()) if key == "workspace" else ("file", path.is_file())
    if is_there and written:
        return path
    words = f"{path} is not a {wanted}" if path.exists() and written else f'there is no {wanted} "{path}"'
    problems.add(document.line_of((key,)), f"{key}: {words}; paths are relative to the scenario file")
    return None


def _digest(scenario: Path, system: Path, workspace: Path) -> str:
    digest = hashlib.sha256()
    for label, path in (("scenario", scenario), ("system", system), *_workspace_files(workspace)):
        try:
            if path.is_symlink() and label not in ("scenario", "system"):
                state, content = "link", os.fsencode(path.readlink())
            else:
                state, content = ("x" if os.access(path, os.X_OK) else "-"), path.read_bytes()
        except OSError as error:
            raise InputError(f"{path}: can't be read: {error.strerror or error}") from None
        digest.update(f"{label}\0{state}\0{len(content)}\0".encode(errors="surrogateescape"))
        digest.update(content)
    return digest.hexdigest()


def _workspace_files(workspace: Path) -> Iterable[tuple[str, Path]]:
    found: list[tuple[str, Path]] = []
    for folder, folders, files in os.walk(workspace):
        folders[:] = set(folders) - KEPT_OUT
        paths = [Path(folder, name) for name in (*files, *folders) if name not in KEPT_OUT]
        found += [
            (path.relative_to(workspace).as_posix(), path) for path in paths if path.is_symlink() or path.is_file()
        ]
    return sorted((f"workspace/{name}", path) for name, path in found)
