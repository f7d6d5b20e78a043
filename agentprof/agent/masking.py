"""Makes the output of equal tool calls equal text: paths of this session, durations and addresses are replaced.

Recorded histories rest on it: the prompts of two sessions should differ in nothing that the tools happened to print.
"""

from __future__ import annotations

import re

from agentprof.agent.survivors import MARK
from agentprof.agent.workspace import SEEN_ROOT, SEEN_SCRATCH, Workspace

MASKED_DURATION = "0.00s"
MASKED_ADDRESS = "0x000000000000"

_NUMBER = r"\d+(?:[.,]\d+)*(?:e[+-]?\d+)?"
_DURATION = re.compile(
    rf"""
    (?<![\w.,/-])(?<!\d:)                       # not inside a name, a version, a path, a time of day
    (?<!the\ time\ limit\ of\ )                 # what agentprof itself says of a limit, equal in equal runs
    (?:
        (?:\d+h\s?)?\d+m\s?{_NUMBER}s           # 0m0.123s, 1m 23s
      | {_NUMBER}\s?
        (?:ns|us|µs|μs|ms|s|[mun]?secs?|seconds?|milliseconds?|microseconds?|nanoseconds?|minutes?)
    )
    (?:\ \(\d+:\d\d:\d\d\))?                    # the same again in hours, as pytest writes it from a minute on
    (?![\w/-])
    """,
    re.VERBOSE,
)
_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]{6,16}\b")
_RULE = re.compile(r"([=_*-])\1{2,}")
_CALL_MARK = re.compile(rf"({MARK}=)\S*")
_LEFT_OUT = re.compile(r"\[… \d+ bytes left out …\]")


def mask(text: str, workspace: Workspace) -> str:
    """Replace what differs between equal runs: workspace path, scratch path, durations, addresses of objects.

    In a line with a duration, the rules drawn around it become three characters long, since programs draw them as long
    as the rest leaves room. Applying it twice changes nothing more.
    """
    text = _CALL_MARK.sub(rf"\1{SEEN_ROOT}", text)
    text = text.replace(str(workspace.scratch), SEEN_SCRATCH).replace(str(workspace.root), SEEN_ROOT)
    text = _ADDRESS.sub(MASKED_ADDRESS, text)
    text = _LEFT_OUT.sub("[… some bytes left out …]", text)
    return "\n".join(map(_mask_line, text.split("\n")))


def _mask_line(line: str) -> str:
    masked, hits = _DURATION.subn(MASKED_DURATION, line)
    return _RULE.sub(r"\1\1\1", masked) if hits else line
