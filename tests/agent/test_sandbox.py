from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
import uuid
from pathlib import Path

import pytest
from tool_calls import LIMITS, CallTool, gone, limits, seconds, until

from agentprof.agent.sandbox import Sandbox, find_sandbox
from agentprof.agent.tools import execute
from agentprof.agent.workspace import Workspace
from agentprof.errors import SandboxError


def test_a_command_sees_its_workspace_at_one_place(workspace: Workspace, call: CallTool, sandbox: Sandbox) -> None:
    result = call("bash", command="pwd; ls; echo made >made.txt; python -c 'print(6 * 7)'", sandbox=sandbox)
    assert result.output == "/workspace\nnotes.txt\nsrc\n42\n[exit code 0]"
    assert result.is_sandboxed
    assert (workspace.root / "made.txt").read_text() == "made\n"
    assert call("read_file", path="/workspace/made.txt", sandbox=sandbox).output == "1\tmade\n"


def test_search_runs_inside_and_file_tools_do_not(call: CallTool, sandbox: Sandbox) -> None:
    found = call("search", pattern="return 2", sandbox=sandbox)
    assert (found.output, found.is_sandboxed) == ("src/two.py:2:     return 2\n", True)
    assert not call("list_files", sandbox=sandbox).is_sandboxed


def test_there_is_no_network(call: CallTool, sandbox: Sandbox) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        connect = f'python -c \'import socket; socket.create_connection(("127.0.0.1", {port}), 3); print("in")\''
        accepting = threading.Thread(target=lambda: server.accept()[0].close())
        accepting.start()
        inside = call("bash", command=connect, sandbox=sandbox)
        outside = call("bash", command=connect)
        accepting.join()
    assert inside.exit_code == 1
    assert "Connection refused" in inside.output
    assert outside.output == "in\n[exit code 0]"
    interfaces = call("bash", command="tail -n +3 /proc/net/dev | cut -d: -f1", sandbox=sandbox)
    assert interfaces.output.split() == ["lo", "[exit", "code", "0]"]


def test_other_files_are_not_there(
    tmp_path: Path, call: CallTool, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s3cret")
    monkeypatch.chdir(tmp_path)
    command = f"cat {secret} /etc/passwd /etc/shadow {__file__}; ls -A {tmp_path} {tmp_path.parent} {Path.cwd()}"
    result = call("bash", command=command, sandbox=sandbox)
    assert result.output.count("No such file or directory") == 7
    assert "s3cret" not in result.output
    on_the_way = {part for prefix in (sys.prefix, sys.base_prefix) for part in Path(prefix).parts}
    for folder in (Path.home(), Path(__file__).parents[2], Path("/home"), Path("/var"), Path("/opt")):
        seen = call("bash", command=f"ls -A {folder} 2>/dev/null", sandbox=sandbox).output.split()
        assert set(seen[: seen.index("[exit")]) <= on_the_way


def test_nothing_outside_can_be_written(call: CallTool, sandbox: Sandbox) -> None:
    places = [
        "/made",
        "/usr/made",
        "/etc/made",
        "/usr/local/made",
        "/root/made",
        f"{sys.prefix}/made",
        "/proc/sys/made",
    ]
    command = (
        "; ".join(f"(echo x >{place}) && echo wrote" for place in places) + "; mount -o remount,rw /usr && echo wrote"
    )
    output = call("bash", command=command, sandbox=sandbox).output
    assert "wrote" not in output
    assert not any(Path(place).exists() for place in places)


def test_it_holds_no_privileges_and_can_gain_none(call: CallTool, sandbox: Sandbox) -> None:
    output = call("bash", command="grep -E 'Cap(Prm|Eff|Bnd)|NoNewPrivs' /proc/self/status", sandbox=sandbox).output
    assert {line.split()[1] for line in output.splitlines()[:3]} == {"0000000000000000"} | {
        line.split()[1] for line in output.splitlines()[:3] if line.startswith("NoNew")
    }
    assert "NoNewPrivs:\t1" in output
    if "--disable-userns" in sandbox.namespaces:
        assert call("bash", command="unshare -Ur true", sandbox=sandbox).exit_code != 0


def test_it_sees_no_other_process_and_no_key(call: CallTool, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret-1")
    output = call(
        "bash", command="env; cat /proc/[0-9]*/environ | tr '\\0' '\\n'; ls /proc | grep -c '^[0-9]'", sandbox=sandbox
    )
    assert "sk-secret-1" not in output.output
    assert "HOME=/workspace" in output.output
    assert "AGENTPROF_CALL" not in call("bash", command="env", sandbox=sandbox).output
    assert int(output.output.splitlines()[-2]) <= 8


def test_its_scratch_folder_is_private_and_lasts_for_the_session(
    workspace: Workspace, call: CallTool, sandbox: Sandbox
) -> None:
    if any(folder.is_relative_to("/tmp") for folder in sandbox.python_folders):
        pytest.skip("Python is installed below /tmp: the sandbox's /tmp lasts for one call only")
    mark = f"agentprof-test-{uuid.uuid4()}"
    assert call("bash", command=f"echo kept >/tmp/{mark}", sandbox=sandbox).exit_code == 0
    assert not Path("/tmp", mark).exists()
    assert (
        call("bash", command=f"cat $TMPDIR/{mark}; ls /tmp", sandbox=sandbox).output == f"kept\n{mark}\n[exit code 0]"
    )
    assert (workspace.scratch / mark).exists()


def test_at_the_time_limit_nothing_survives_inside(call: CallTool, sandbox: Sandbox) -> None:
    nap = f"60.{uuid.uuid4().int % 10**12:012d}"
    command = f"echo started; trap '' TERM; setsid sleep {nap} & env -i setsid sleep {nap} & sleep {nap}"
    result = call("bash", command=command, limits=limits(0.5), sandbox=sandbox)
    assert result.is_timed_out
    assert result.output == "started\n[stopped at the time limit of 0.5 s]"
    assert 0.5 <= seconds(result) <= 1.0 + 1.0
    assert gone(nap)


def test_background_processes_end_with_the_call_inside(call: CallTool, sandbox: Sandbox) -> None:
    nap = f"60.{uuid.uuid4().int % 10**12:012d}"
    result = call("bash", command=f"sleep {nap} & setsid sleep {nap} & echo ok", sandbox=sandbox)
    assert result.output == "ok\n[exit code 0]"
    assert seconds(result) < 5
    assert gone(nap)


def test_cancelling_kills_what_runs_inside(workspace: Workspace, sandbox: Sandbox) -> None:
    nap = f"60.{uuid.uuid4().int % 10**12:012d}"

    async def cancel_when_ready() -> None:
        command = {"command": f"setsid sleep {nap} & touch ready; sleep {nap}"}
        task = asyncio.create_task(execute("bash", command, workspace, LIMITS, sandbox))
        await until((workspace.root / "ready").exists)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert gone(nap, within_s=0.5)

    asyncio.run(cancel_when_ready())


def test_memory_is_limited_inside(call: CallTool, sandbox: Sandbox) -> None:
    code = "bytearray(300 << 20)"
    result = call("bash", command=f"python -c '{code}'", limits=limits(memory_mib=256), sandbox=sandbox)
    assert "MemoryError" in result.output
    raised = call("bash", command="ulimit -v unlimited; ulimit -v", limits=limits(memory_mib=256), sandbox=sandbox)
    assert "Operation not permitted" in raised.output
    assert "\n262144\n" in raised.output


def test_a_link_planted_from_inside_leads_nowhere(
    tmp_path: Path, workspace: Workspace, call: CallTool, sandbox: Sandbox
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s3cret")
    assert call("bash", command=f"ln -s {secret} link; ln -s {tmp_path} folder", sandbox=sandbox).exit_code == 0
    for tool, arguments in (
        ("read_file", {"path": "link"}),
        ("read_file", {"path": "folder/secret"}),
        ("write_file", {"path": "link", "content": "x"}),
        ("write_file", {"path": "folder/new", "content": "x"}),
        ("edit_file", {"path": "link", "old": "s3cret", "new": "x"}),
        ("search", {"pattern": "s3", "path": "folder"}),
        ("list_files", {"path": "folder"}),
    ):
        result = call(tool, sandbox=sandbox, **arguments)
        assert result.is_error
        assert "outside the workspace" in result.output
    assert secret.read_text() == "s3cret"
    assert not (tmp_path / "new").exists()
    assert "s3cret" not in call("search", pattern="s3", sandbox=sandbox).output


def test_without_bubblewrap_one_line_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SandboxError) as caught:
        find_sandbox()
    message = str(caught.value)
    assert "\n" not in message
    assert "not installed" in message
    assert "bubblewrap" in message
    assert "--allow-unsandboxed" in message


def test_a_bubblewrap_that_does_not_work_is_told_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\necho more >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(SandboxError) as caught:
        find_sandbox()
    message = str(caught.value)
    assert "\n" not in message
    assert "bwrap: No permissions to create new namespace" in message
    assert "--allow-unsandboxed" in message


def test_an_interpreter_whose_folder_holds_the_home_folder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sandbox: Sandbox
) -> None:
    shim = tmp_path / "bwrap"
    shim.symlink_to(sandbox.bwrap)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    with pytest.raises(SandboxError, match="holds the home folder"):
        find_sandbox()


def test_an_older_bubblewrap_is_used_without_what_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sandbox: Sandbox
) -> None:
    older = tmp_path / "bwrap"
    older.write_text(
        '#!/bin/sh\nfor word; do [ "$word" = --disable-userns ] && { echo "Unknown option" >&2; exit 1; }; done\n'
        f'exec {sandbox.bwrap} "$@"\n'
    )
    older.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = find_sandbox()
    assert found.bwrap == str(older)
    assert "--disable-userns" not in found.namespaces


def test_a_newer_bubblewrap_forbids_namespaces_inside(sandbox: Sandbox) -> None:
    options = subprocess.run([sandbox.bwrap, "--help"], check=False, capture_output=True, text=True).stdout
    assert ("--disable-userns" in find_sandbox().namespaces) == ("--disable-userns" in options)
