"""Executing the six tools: whatever a model asks for, the answer is a result, and it respects the limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from agentprof.agent import files
from agentprof.agent.capture import Capture, bound
from agentprof.agent.environment import tool_environment
from agentprof.agent.processes import Exit, StopSignal, run_command, run_in_thread, with_memory_limit
from agentprof.agent.sandbox import Sandbox
from agentprof.agent.workspace import ToolInputError, Workspace
from agentprof.clock import now_ns
from agentprof.records.scenario import KEPT_OUT
from agentprof.records.tools import check_arguments

# grep runs as a process, since a regular expression of a model can take for ever and a process can be killed. The NUL
# that -Z puts after each path keeps colons in paths apart; a stable sort by path leaves a file's lines in order.
_SEARCH = (
    "grep -rnHIEZ -D skip "
    + " ".join(f"--exclude-dir={name}" for name in sorted(KEPT_OUT))
    + r""" -e "$1" -- "${@:2}" | LC_ALL=C sort -s -t '\0' -k1,1 | LC_ALL=C sed 's/\x00\([0-9]*\):/:\1: /'"""
    + '; exit "${PIPESTATUS[0]}"'
)
_GREP_FOUND_NOTHING = 1


@dataclass(frozen=True, slots=True)
class ToolLimits:
    """What one tool call may take. `memory_mib`: address space of each of its processes."""

    time_ns: int
    memory_mib: int
    output_bytes: int


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a tool call gave.

    `output`: what the model sees, at most `ToolLimits.output_bytes`. Times on the monotonic clock, in nanoseconds; a
    command lasts from the making of its process to the exit of that process. `exit_code`: None for tools that are no
    process; 128 + n where signal n ended it. `output_bytes`: the size of the whole output, before any cut. `is_error`:
    the tool couldn't do what was asked; a command that exits with another code than 0 did run, and is none.
    """

    output: str
    started_ns: int
    ended_ns: int
    exit_code: int | None
    output_bytes: int
    is_error: bool
    is_timed_out: bool
    is_truncated: bool
    is_sandboxed: bool


@dataclass(frozen=True, slots=True)
class _Call:
    arguments: Mapping[str, str]
    workspace: Workspace
    limits: ToolLimits
    sandbox: Sandbox | None
    mark: str
    started_ns: int

    @property
    def deadline_ns(self) -> int:
        return self.started_ns + self.limits.time_ns


async def execute(
    name: str, arguments: Mapping[str, object], workspace: Workspace, limits: ToolLimits, sandbox: Sandbox | None
) -> ToolResult:
    """Run one tool call; in the sandbox, where one is given, if the tool is a process.

    A model's mistakes (an unknown tool, wrong arguments, a path outside, a text that isn't there) give a result with
    `is_error` that says what to do. When cancelled, everything that the call started is killed before CancelledError
    goes on.
    """
    started_ns = now_ns()
    fault = check_arguments(name, arguments) or _text_fault(arguments)
    if fault is not None:
        return _refuse(fault, started_ns, limits)
    texts = {key: str(value) for key, value in arguments.items()}
    call = _Call(texts, workspace, limits, sandbox, f"{workspace.mark}{started_ns:x}", started_ns)
    return await run_in_thread(partial(_perform, _TOOLS[name], call))


def _text_fault(arguments: Mapping[str, object]) -> str | None:
    """What the system can't take: half of a surrogate pair anywhere, NUL outside the text of files."""
    for key, value in arguments.items():
        text = str(value)
        if not text.isascii() and any("\ud800" <= char <= "\udfff" for char in text):
            return f'"{key}" holds half of a surrogate pair, which is no text'
        if "\0" in text and key in ("command", "path", "pattern"):
            return f'"{key}" holds a NUL character'
    return None


def _perform(tool: Callable[[_Call, StopSignal], ToolResult], call: _Call, stop: StopSignal) -> ToolResult:
    call = replace(call, started_ns=now_ns())  # waiting for the thread isn't the tool's time
    try:
        return tool(call, stop)
    except ToolInputError as error:
        return _refuse(str(error), call.started_ns, call.limits)
    except files.DeadlineError:
        return _refuse(_time_is_over(call.limits), call.started_ns, call.limits, is_timed_out=True)


def _bash(call: _Call, stop: StopSignal) -> ToolResult:
    capture, ended = _run(["bash", "-c", call.arguments["command"]], call, stop)
    note = f"[{_time_is_over(call.limits)}]" if ended.is_timed_out else f"[exit code {ended.exit_code}]"
    return _process_result(capture, ended, call, note, is_error=False)


def _search(call: _Call, stop: StopSignal) -> ToolResult:
    operands = []
    if "path" in call.arguments:
        start = call.workspace.resolve(call.arguments["path"])
        if not start.exists():
            raise ToolInputError(f'there is no file or folder "{call.arguments["path"]}" to search in')
        operands = [name for name in [call.workspace.name_of(start)] if name != "."]
    capture, ended = _run(["bash", "-c", _SEARCH, "search", call.arguments["pattern"], *operands], call, stop)
    note = ""
    if ended.is_timed_out:
        note = f"[{_time_is_over(call.limits)}]"
    elif ended.exit_code == _GREP_FOUND_NOTHING:
        note = "no matches"
    return _process_result(capture, ended, call, note, is_error=(ended.exit_code or 0) > _GREP_FOUND_NOTHING)


def _run(argv: list[str], call: _Call, stop: StopSignal) -> tuple[Capture, Exit]:
    """Run a command in the workspace, in the sandbox where there is one."""
    workspace = call.workspace
    capture = Capture(call.limits.output_bytes)
    limited = with_memory_limit(argv, call.limits.memory_mib)
    wrapped = call.sandbox.wrap(limited, workspace) if call.sandbox else limited
    environment = tool_environment(str(workspace.root), str(workspace.scratch))
    try:
        workspace.scratch.mkdir(mode=0o700, exist_ok=True)
        ended = run_command(wrapped, workspace.root, environment, call.mark, call.deadline_ns, capture, stop)
    except OSError as error:
        raise ToolInputError(f"the command can't be started: {error.strerror}") from error
    return capture, ended


def _process_result(capture: Capture, ended: Exit, call: _Call, note: str, *, is_error: bool) -> ToolResult:
    """The output with a note after it, all within the limit."""
    text, is_truncated = capture.text(call.limits.output_bytes - len(note.encode()) - 1)
    parting = "\n" if text and note and not text.endswith("\n") else ""
    return ToolResult(
        output=text + parting + note,
        started_ns=ended.started_ns,
        ended_ns=ended.ended_ns,
        exit_code=ended.exit_code,
        output_bytes=capture.size_bytes,
        is_error=is_error or ended.is_timed_out,
        is_timed_out=ended.is_timed_out,
        is_truncated=is_truncated,
        is_sandboxed=call.sandbox is not None,
    )


def _read_file(call: _Call, stop: StopSignal) -> ToolResult:
    capture = Capture(call.limits.output_bytes)
    files.read_file(call.workspace, call.arguments["path"], capture, files.Deadline(call.deadline_ns, stop))
    return _file_result(capture, call)


def _list_files(call: _Call, stop: StopSignal) -> ToolResult:
    capture = Capture(call.limits.output_bytes)
    files.list_files(call.workspace, call.arguments.get("path", "."), capture, files.Deadline(call.deadline_ns, stop))
    return _file_result(capture, call)


def _write_file(call: _Call, _stop: StopSignal) -> ToolResult:
    said = files.write_file(call.workspace, call.arguments["path"], call.arguments["content"])
    return _say(said, call.started_ns, call.limits)


def _edit_file(call: _Call, _stop: StopSignal) -> ToolResult:
    arguments = call.arguments
    said = files.edit_file(call.workspace, arguments["path"], arguments["old"], arguments["new"])
    return _say(said, call.started_ns, call.limits)


def _file_result(capture: Capture, call: _Call) -> ToolResult:
    text, is_truncated = capture.text(call.limits.output_bytes)
    return ToolResult(
        output=text,
        started_ns=call.started_ns,
        ended_ns=now_ns(),
        exit_code=None,
        output_bytes=capture.size_bytes,
        is_error=False,
        is_timed_out=False,
        is_truncated=is_truncated,
        is_sandboxed=False,
    )


def _refuse(message: str, started_ns: int, limits: ToolLimits, *, is_timed_out: bool = False) -> ToolResult:
    return _say(f"error: {message}", started_ns, limits, is_error=True, is_timed_out=is_timed_out)


def _say(
    message: str, started_ns: int, limits: ToolLimits, *, is_error: bool = False, is_timed_out: bool = False
) -> ToolResult:
    text, is_truncated = bound(message, limits.output_bytes)
    return ToolResult(
        output=text,
        started_ns=started_ns,
        ended_ns=now_ns(),
        exit_code=None,
        output_bytes=len(message.encode(errors="replace")),
        is_error=is_error,
        is_timed_out=is_timed_out,
        is_truncated=is_truncated,
        is_sandboxed=False,
    )


def _time_is_over(limits: ToolLimits) -> str:
    return f"stopped at the time limit of {limits.time_ns / 1e9:g} s"


_TOOLS: Mapping[str, Callable[[_Call, StopSignal], ToolResult]] = {
    "bash": _bash,
    "read_file": _read_file,
    "write_file": _write_file,
    "edit_file": _edit_file,
    "search": _search,
    "list_files": _list_files,
}
