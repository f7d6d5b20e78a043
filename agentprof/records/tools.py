"""The six tools of the coding agent: their names and the JSON Schemas that the model is shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentprof.records.wording import suggestion


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as the model sees it. `parameters` is a JSON Schema of an object."""

    name: str
    description: str
    parameters: Mapping[str, Any]

    def definition(self, nonce: str = "") -> dict[str, Any]:
        """The OpenAI tool definition; a nonce, where given, stands at the head of the description."""
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": nonce + self.description,
                "parameters": dict(self.parameters),
            },
        }


def _parameters(required: Mapping[str, str], optional: Mapping[str, str] | None = None) -> dict[str, Any]:
    described = {**required, **(optional or {})}
    return {
        "type": "object",
        "properties": {name: {"type": "string", "description": text} for name, text in described.items()},
        "required": list(required),
        "additionalProperties": False,
    }


TOOLS: Mapping[str, ToolSpec] = {
    spec.name: spec
    for spec in (
        ToolSpec(
            "bash",
            "Run a shell command in the workspace and return its output and exit code.",
            _parameters({"command": "The command to run with bash."}),
        ),
        ToolSpec(
            "read_file",
            "Read a text file of the workspace, with line numbers.",
            _parameters({"path": "Path relative to the workspace."}),
        ),
        ToolSpec(
            "write_file",
            "Write a whole file, creating folders as needed and replacing what was there.",
            _parameters({"path": "Path relative to the workspace.", "content": "The whole new content."}),
        ),
        ToolSpec(
            "edit_file",
            "Replace one exact piece of text in a file. The old text must occur exactly once.",
            _parameters({"path": "Path relative to the workspace.", "old": "Text to find.", "new": "Replacement."}),
        ),
        ToolSpec(
            "search",
            "Search the workspace's files for a regular expression; returns path:line: text.",
            _parameters(
                {"pattern": "Extended regular expression, as in grep -E."}, {"path": "Folder or file to search in."}
            ),
        ),
        ToolSpec(
            "list_files",
            "List the files of the workspace, or of one of its folders.",
            _parameters({}, {"path": "Folder to list."}),
        ),
    )
}
"""Tools by name."""


def check_arguments(name: str, arguments: Mapping[str, Any]) -> str | None:
    """What is wrong with a tool call, in one line for people and models alike; None where nothing is.

    Checks the tool's name, then unknown, missing and non-text arguments; not what the values mean.
    """
    spec = TOOLS.get(name)
    if spec is None:
        return f'"{name}" is not a tool. Tools: {", ".join(TOOLS)}.{suggestion(name, TOOLS)}'
    known = list(spec.parameters["properties"])
    for key, value in arguments.items():
        if key not in known:
            return f'{name} takes no "{key}". It takes: {", ".join(known)}.{suggestion(key, known)}'
        if not isinstance(value, str):
            return f"{name}: {key} must be text"
        if not value.isascii() and any("\ud800" <= char <= "\udfff" for char in value):
            return f"{name}: {key} holds half of a surrogate pair, which is no text"
    missing = [key for key in spec.parameters["required"] if key not in arguments]
    return f"{name} needs {' and '.join(missing)}" if missing else None
