"""Small scenarios on disk: a workspace with two files, a short prompt, a few steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from agentprof.records.loading import load_scenario
from agentprof.records.scenario import Scenario

TURNS: list[dict[str, Any]] = [
    {
        "user": "Say what the notes hold.",
        "steps": [
            {
                "reasoning": "Look first.",
                "calls": [{"bash": {"command": "cat notes.txt"}}, {"read_file": {"path": "src/one.py"}}],
                "output_tokens": 8,
            },
            {"answer": "They hold one line.", "output_tokens": 8},
        ],
    }
]


def write_scenario(folder: Path, name: str = "tiny", **changes: Any) -> Path:
    """Write a scenario file with its workspace and prompt; keywords replace or add keys, None removes one."""
    work = folder / "work"
    if not work.exists():
        (work / "src").mkdir(parents=True)
        (work / "notes.txt").write_text("first\n")
        (work / "src" / "one.py").write_text("def one():\n    return 1\n")
        (folder / "prompt.md").write_text("You are a careful coding agent. Work in small steps and prove the result.\n")
    written = {
        "name": name,
        "workspace": "work",
        "system": "prompt.md",
        "tools": ["bash", "read_file"],
        "limits": {"session": "60s", "tool": "10s", "output_tokens": 16},
        "turns": TURNS,
        **changes,
    }
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump({key: value for key, value in written.items() if value is not None}))
    return path


def make_scenario(folder: Path, name: str = "tiny", **changes: Any) -> Scenario:
    """The same, loaded."""
    return load_scenario(write_scenario(folder, name, **changes))
