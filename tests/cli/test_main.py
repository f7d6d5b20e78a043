"""The command line without a server: help, exit codes, and one clear line for every mistake."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from small_scenarios import write_scenario

from agentprof import __version__, semconv
from agentprof.cli.main import cli, run
from agentprof.errors import ExitCode
from agentprof.records.spans import Span, SpanRef
from agentprof.runs.store import RunWriter

KEY = "sk-tests-0123456789abcdef"


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def commands() -> list[list[str]]:
    """Every command and subcommand, as it is typed."""
    found: list[list[str]] = []

    def walk(command: click.Command, words: list[str]) -> None:
        found.append(words)
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                inner = command.get_command(context, name)
                assert inner is not None
                walk(inner, [*words, name])

    walk(cli, [])
    return found


def refused(capsys: pytest.CaptureFixture[str], *arguments: str, code: ExitCode = ExitCode.BAD_INPUT) -> str:
    """The one line on stderr of a command that is refused."""
    assert run(arguments) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.endswith("\n")
    assert "Traceback" not in err
    assert err.startswith("agentprof: ")
    assert err.count("\n") == 1, err
    return err


def write_run(folder: Path, plan: int = 1, **facts: object) -> None:
    """A run of one finished session, of so many planned."""
    planned = [{"scenario": "fix", "backend": "new", "repetition": n + 1, "is_warmup": False} for n in range(plan)]
    writer = RunWriter(
        folder, {"planned": planned, "scenarios": {"fix": {}}, "backends": {"new": {}}, "is_finished": True, **facts}
    )
    attributes = {semconv.SCENARIO: "fix", semconv.BACKEND: "new", semconv.REPETITION: 1, semconv.OUTCOME: "completed"}
    root = Span(SpanRef(1, 1), None, "invoke_agent fix", 0, 10**9, attributes=attributes)
    writer.write_session([root], [], [], {})


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_every_command_has_help_with_an_example(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*words, "--help"]) == ExitCode.OK
    out, err = capsys.readouterr()
    assert err == ""
    assert "agentprof " + " ".join(words) in out.split("Usage:")[1]
    examples = [line for line in out.splitlines()[2:] if line.strip().startswith(" ".join(["agentprof", *words]))]
    assert examples, out
    assert all(len(line) <= 120 for line in out.splitlines())


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == ExitCode.OK
    assert __version__ in capsys.readouterr().out


def test_the_help_lists_every_command_without_importing_it() -> None:
    script = "import sys; from agentprof.cli.main import run; run(['--help']); print('openai' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    listed = ended.stdout.partition("Commands:")[2]
    assert all(f"\n  {words[0]} " in listed for words in commands() if len(words) == 1)
    assert "..." not in listed
    assert ended.stdout.endswith("False\n")


def test_no_command_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == ExitCode.BAD_INPUT
    assert "replay" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["replya"], "No such command 'replya'"),
        (["replay"], "Missing argument"),
        (["replay", "x.yaml", "--no-such"], "No such option"),
        (["replay", "x.yaml", "--repeat", "0"], "'--repeat'"),
        (["replay", "x.yaml", "--cache", "none"], "'none' is not one of"),
        (["explain", "a", "b"], "unexpected extra argument"),
    ],
)
def test_wrong_usage_is_one_line_that_names_the_help(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    line = refused(capsys, *arguments)
    assert words in line
    assert "--help` says more" in line


def test_a_scenario_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert "nowhere.yaml" in refused(capsys, "replay", "nowhere.yaml", "-b", "local")
    assert "fix-failing-test" in refused(capsys, "replay", "nonsense", "-b", "local")


def test_a_wrong_scenario_is_named_with_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_scenario(tmp_path, tools=["bash", "read_file", "serach"])
    number = next(n for n, line in enumerate(path.read_text().splitlines(), start=1) if "serach" in line)
    line = refused(capsys, "replay", str(path), "-b", "local")
    assert f"{path}:{number}: " in line
    assert '"serach" is not a tool' in line
    assert 'Did you mean "search"?' in line


def test_all_mistakes_of_a_file_are_told_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_scenario(tmp_path, mode="lively", cache="none", lengths="free")
    assert run(["replay", str(path), "-b", "local"]) == ExitCode.BAD_INPUT
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert all(line.startswith(f"agentprof: {path}:") for line in lines)


def test_broken_yaml_is_named_with_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.yaml").write_text("name: x\nturns: [\n")
    assert "bad.yaml:" in refused(capsys, "replay", "bad.yaml", "-b", "local")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "no backend: give --backend NAME"),
        (["-b", "new"], 'backend "new": not known: there is no backends.yaml here'),
        (["-b", "local", "-b", "local"], '"local" is named twice'),
        (["--base-url", "http://127.0.0.1:9/v1"], "--base-url needs --model"),
        (["--base-url", "127.0.0.1:9", "--model", "m"], "expected a URL such as"),
        (["--base-url", "http://127.0.0.1:9/v1", "--model", "m", "-b", "local"], "exclude each other"),
        (["-b", "local", "--api-key-env", "K"], "--api-key-env goes with --base-url"),
        (["-b", "local", "--repeat", "2", "--concurrency", "3"], "--repeat 2 is less than --concurrency 3"),
        (["-b", "local", "--otlp-endpoint", "localhost:4318"], "is not an http(s) URL"),
        (["-b", "local", "--out", "."], "already exists"),
        (["-b", "local", "--model", "nowhere.gguf"], "nowhere.gguf"),
        (["-b", "local", "--backends", "nowhere.yaml"], "nowhere.yaml"),
    ],
)
def test_options_that_do_not_fit_together(
    tmp_path: Path, options: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert words in refused(capsys, "replay", str(write_scenario(tmp_path)), *options)


def test_a_backend_that_the_file_lacks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "backends.yaml").write_text("backends:\n  old: {base_url: http://127.0.0.1:9/v1, model: m}\n")
    path = str(write_scenario(tmp_path))
    assert "backends.yaml has old" in refused(capsys, "replay", path, "-b", "new")
    assert "--model goes with --base-url" in refused(capsys, "replay", path, "-b", "old", "--model", "m")


def test_a_key_that_is_not_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("OLD_KEY", raising=False)
    (tmp_path / "backends.yaml").write_text(
        "backends:\n  old: {base_url: http://127.0.0.1:9/v1, model: m, api_key_env: OLD_KEY}\n"
    )
    line = refused(capsys, "replay", str(write_scenario(tmp_path)), "-b", "local", "-b", "old")
    assert "the environment variable OLD_KEY is not set" in line


def test_a_key_given_for_its_variable_is_not_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = ["--base-url", "http://127.0.0.1:9/v1", "--model", "m"]
    line = refused(capsys, "replay", str(write_scenario(tmp_path)), *url, "--api-key-env", KEY)
    assert KEY not in line
    assert "environment variable" in line


def test_an_override_that_the_steps_do_not_allow(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    live = write_scenario(tmp_path, "live", mode="live", turns=[{"user": "Go."}])
    line = refused(capsys, "replay", str(live), "-b", "local", "--mode", "scripted")
    assert "live.yaml: --mode scripted: steps is missing" in line
    free = write_scenario(tmp_path, "free", length="free", turns=[{"user": "Go.", "steps": [{"answer": "Done."}]}])
    line = refused(capsys, "replay", str(free), "-b", "local", "--length", "forced")
    assert "output_tokens is missing" in line


def test_two_scenarios_of_one_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = write_scenario(tmp_path)
    two = tmp_path / "copy.yaml"
    two.write_text(one.read_text())
    assert "names must differ" in refused(capsys, "replay", str(one), str(two), "-b", "local")


def test_live_without_a_sandbox(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    live = write_scenario(tmp_path, mode="live", turns=[{"user": "Go."}])
    line = refused(capsys, "replay", str(live), "-b", "local")
    assert "bubblewrap" in line
    assert "--allow-unsandboxed" in line


def test_explain_prints_text_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "r")
    assert run(["explain", "r"]) == ExitCode.OK
    assert "fix on new" in capsys.readouterr().out
    assert run(["explain", "r", "--json"]) == ExitCode.OK
    told = json.loads(capsys.readouterr().out)
    assert (told["format"], told["run"]["folder"], told["sessions"][0]["wall_ns"]) == (1, "r", 10**9)


def test_explain_of_an_incomplete_run_names_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "r", plan=3)
    assert run(["explain", "r", "--json"]) == ExitCode.INCOMPLETE
    out, err = capsys.readouterr()
    assert json.loads(out)["run"]["problems"] == [err.removeprefix("agentprof: ").rstrip("\n")]
    assert "2 of 3 sessions are missing: fix on new: repetition 2, repetition 3." in err


def test_latest_is_the_newest_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "runs: no runs yet" in refused(capsys, "explain")
    write_run(tmp_path / "runs" / "z", created="2026-01-01T00:00:00+00:00")
    write_run(tmp_path / "runs" / "a", created="2026-01-02T00:00:00+00:00")
    assert run(["explain", "--json"]) == ExitCode.OK
    assert json.loads(capsys.readouterr().out)["run"]["folder"] == "runs/a"


@pytest.mark.parametrize(
    ("text", "words"), [(None, "no run folder"), ("{", "is damaged"), ('{"format": 999}', "is newer than")]
)
def test_explain_of_what_is_no_run(
    tmp_path: Path, text: str | None, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if text is not None:
        (tmp_path / "run.json").write_text(text)
    assert words in refused(capsys, "explain", str(tmp_path))


def test_runs_lists_them_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["runs"]) == ExitCode.OK
    assert "no runs yet" in capsys.readouterr().err
    write_run(tmp_path / "runs" / "whole", is_finished=True)
    write_run(tmp_path / "runs" / "cut", plan=4, is_finished=False)
    (tmp_path / "runs" / "broken").mkdir()
    (tmp_path / "runs" / "broken" / "run.json").write_text("{")
    assert run(["runs"]) == ExitCode.OK
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.split() == ["run", "scenarios", "backends", "sessions", "state"]
    told = {row.split()[0]: " ".join(row.split()[1:]) for row in rows}
    assert told["whole"] == "fix new 1 of 1 finished"
    assert told["cut"] == "fix new 1 of 4 incomplete"
    assert "is damaged" in told["broken"]


def test_output_that_nobody_reads_is_no_error(tmp_path: Path) -> None:
    write_run(tmp_path / "r")
    reader, writer = os.pipe()
    os.close(reader)
    ended = subprocess.run(
        [sys.executable, "-m", "agentprof", "explain", "r"],
        stdout=writer,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
        check=False,
    )
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (ExitCode.OK, b"")
