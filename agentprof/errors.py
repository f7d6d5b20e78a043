"""Errors that reach a user as one line, and the exit codes of every command.

AgentprofError            one clear line; carries the exit code
├── InputError            what a person wrote is wrong: a file, an option            exit 2
├── BackendError          the served model can't be used: refused, 404, 401          exit 2 before a run, 4 in it
│   └── CallError         one call failed for good; carries its kind
├── SandboxError          what must be isolated can't be                             exit 2
└── RunError              a run is incomplete, or spans were lost                    exit 4
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes, the same for every command."""

    OK = 0
    CHECK_FAILED = 1
    BAD_INPUT = 2
    NOT_ENOUGH_EVIDENCE = 3
    INCOMPLETE = 4
    INTERRUPTED = 130


class AgentprofError(Exception):
    """Base of the errors that are printed as one line, without a traceback."""

    exit_code: ExitCode = ExitCode.BAD_INPUT


class InputError(AgentprofError):
    """What a person wrote is wrong: says where, what was found, and what to do."""


class BackendError(AgentprofError):
    """A served model can't be used."""


class CallError(BackendError):
    """One call failed for good.

    kind: a short word (`http_404`, `refused`, `truncated`, `context_overflow`, …), documented in docs/metrics.md.
    ended_ns: when its last attempt ended, where there was one.
    """

    exit_code = ExitCode.INCOMPLETE

    def __init__(self, kind: str, message: str, ended_ns: int | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.ended_ns = ended_ns


class SandboxError(AgentprofError):
    """Something that must be isolated can't be isolated here."""


class RunError(AgentprofError):
    """A run is incomplete, or spans were lost."""

    exit_code = ExitCode.INCOMPLETE
