"""How many questions of a benchmark were answered right."""

from __future__ import annotations

from collections.abc import Sequence

from agentprof.analysis.frames import SessionFrame


def render_questions(group: str, sessions: Sequence[SessionFrame]) -> str:
    """One line with the score; empty where nothing was scored."""
    scored = [frame.checks_passed for frame in sessions if not frame.is_warmup and frame.checks_passed is not None]
    if not scored:
        return ""
    missing = sum(not frame.is_warmup for frame in sessions) - len(scored)
    left_out = f"; {missing} without a reply" if missing else ""
    return f"{group}: {sum(scored)} of {len(scored)} answered right{left_out}. So few questions are a smoke test."
