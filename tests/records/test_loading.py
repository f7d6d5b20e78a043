"""Scenario and backend files: what loads, and what each mistake is told."""

import hashlib
import os
import re
import textwrap
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentprof.agent.workspace import KEPT_OUT
from agentprof.cli.validate import validate
from agentprof.errors import InputError
from agentprof.records import loading
from agentprof.records.backend import Backend
from agentprof.records.loading import load_backends, load_scenario, make_backend
from agentprof.records.scenario import Limits, Sampling, Scenario, Step, ToolUse, Turn

GOOD = """\
name: small
workspace: files
system: prompt.md
tools: [bash, read_file, search]
turns:
  - user: Fix it.
    think: 1.5s
    steps:
      - calls:
          - bash: {command: ls}
          - read_file: {path: a.py}
        output_tokens: 32
      - answer: Done.
        output_tokens: 16
"""

SECRET = "sk-live-0123456789abcdef"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "a.py").write_text("x = 1\n")
    (tmp_path / "prompt.md").write_text("You are terse.\n")
    return tmp_path


def write(folder: Path, text: str | bytes, name: str = "s.yaml") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def problems(path: Path) -> list[str]:
    """The lines of the error, without the folder."""
    with pytest.raises(InputError) as raised:
        loading.load_written(path)
    return str(raised.value).replace(f"{path.parent}{os.sep}", "").splitlines()


def changed(folder: Path, old: str, new: str) -> list[str]:
    """Problems of the good scenario with one piece replaced."""
    assert GOOD.count(old) == 1
    return problems(write(folder, GOOD.replace(old, new)))


def test_a_good_scenario_comes_back_whole(folder: Path) -> None:
    path = write(folder, GOOD)
    scenario = load_scenario(path)
    assert scenario.workspace == (folder / "files").resolve()
    assert scenario.workspace.is_absolute()
    assert scenario.system_text == "You are terse.\n"
    assert scenario.source == path
    assert scenario.turns[0].think == 1_500_000_000
    bash, read = scenario.turns[0].steps[0].calls
    assert bash == ToolUse(name="bash", arguments={"command": "ls"})
    assert read.name == "read_file"
    assert (scenario.mode, scenario.length, scenario.history, scenario.cache) == (
        "scripted",
        "forced",
        "recorded",
        "production",
    )
    assert scenario.limits == Limits()
    assert scenario.sampling == Sampling(temperature=0.0, seed=7)


def test_paths_are_relative_to_the_file_and_may_lead_out(folder: Path) -> None:
    (folder / "deep").mkdir()
    text = GOOD.replace("workspace: files", "workspace: ../files").replace("prompt.md", "../prompt.md")
    scenario = load_scenario(write(folder / "deep", text))
    assert scenario.workspace == (folder / "files").resolve()


def test_the_digest_covers_file_prompt_and_workspace(folder: Path) -> None:
    path = write(folder, GOOD)
    first = load_scenario(path).digest
    assert len(first) == len(hashlib.sha256().hexdigest())
    assert load_scenario(path).digest == first
    seen = {first}
    write(folder, GOOD + "# a comment\n")
    seen.add(load_scenario(path).digest)
    (folder / "prompt.md").write_text("Other.")
    seen.add(load_scenario(path).digest)
    (folder / "files" / "a.py").write_text("x = 2\n")
    seen.add(load_scenario(path).digest)
    (folder / "files" / "a.py").chmod(0o755)
    seen.add(load_scenario(path).digest)
    (folder / "files" / "a.py").rename(folder / "files" / "b.py")
    seen.add(load_scenario(path).digest)
    (folder / "files" / "link").symlink_to("nowhere")
    seen.add(load_scenario(path).digest)
    assert len(seen) == 7


def test_the_digest_leaves_out_what_no_copy_holds(folder: Path) -> None:
    path = write(folder, GOOD)
    first = load_scenario(path).digest
    for name in KEPT_OUT:
        (folder / "files" / name).mkdir()
        (folder / "files" / name / "x").write_text("x")
    assert load_scenario(path).digest == first


def test_the_digest_does_not_wait_for_a_fifo(folder: Path) -> None:
    os.mkfifo(folder / "files" / "pipe")
    assert load_scenario(write(folder, GOOD)).digest


MISTAKES = [
    (
        "tools: [bash, read_file, search]",
        'tools: [bash, read_file, "serach"]',
        's.yaml:4: tools: "serach" is not a tool. '
        'Tools: bash, read_file, write_file, edit_file, search, list_files. Did you mean "search"?',
    ),
    (
        "tools: [bash, read_file, search]",
        "tools: [bash, read_file, bash]",
        's.yaml:4: tools: "bash" is listed twice; keep one',
    ),
    (
        "tools: [bash, read_file, search]",
        "tools: bash",
        's.yaml:4: tools: expected a list, such as [a, b] or lines that begin with "- "; found "bash"',
    ),
    (
        "tools: [bash, read_file, search]",
        "tools: [bash]",
        's.yaml:11: turn 1, step 1, call 2: "read_file" is called but not in the scenario\'s `tools`; add it there',
    ),
    (
        "bash: {command: ls}",
        "bash: {cmd: ls}",
        's.yaml:10: turn 1, step 1, call 1: bash takes no "cmd". It takes: command. Did you mean "command"?',
    ),
    ("bash: {command: ls}", "bash: {}", "s.yaml:10: turn 1, step 1, call 1: bash needs command"),
    ("bash: {command: ls}", "bash:", "s.yaml:10: turn 1, step 1, call 1: bash needs command"),
    (
        "bash: {command: ls}",
        "bash: ls",
        "s.yaml:10: turn 1, step 1, call 1: bash takes its arguments by name, such as {command: …} or {path: …}",
    ),
    ("bash: {command: ls}", "bash: {command: 7}", "s.yaml:10: turn 1, step 1, call 1: bash: command must be text"),
    (
        "bash: {command: ls}",
        "bahs: {command: ls}",
        's.yaml:10: turn 1, step 1, call 1: "bahs" is not a tool. Tools: bash, '
        'read_file, write_file, edit_file, search, list_files. Did you mean "bash"?',
    ),
    (
        "          - read_file",
        "            read_file",
        "s.yaml:10: turn 1, step 1, call 1: one call names one tool; found bash, read_file. Give each its own dash.",
    ),
    (
        "think: 1.5s",
        "think: 60",
        "s.yaml:7: turn 1: think: 60 is not a duration; write it with a unit, such as 250ms, 60s, 10m or 1h",
    ),
    (
        "name: small",
        "name: Small One",
        's.yaml:1: name: may hold lowercase letters, digits and - and begins with a letter or digit; found "Small One"',
    ),
    ("name: small", "nmae: small", 's.yaml:1: "name" is missing: a short name in lowercase letters, digits and -'),
    (
        "user: Fix it.",
        "user: 2024-01-01 12:30:00\n    usr: x",
        's.yaml:7: turn 1: "usr" is not a key here. Keys: user, think, steps. Did you mean "user"?',
    ),
    (
        "user: Fix it.",
        "user: no",
        "s.yaml:6: turn 1: user: expected text; found no, which YAML reads as false; put it in quotes",
    ),
    ("user: Fix it.", "user:", "s.yaml:6: turn 1: user: expected text; found nothing"),
    (
        "output_tokens: 32",
        "output_tokens: many",
        's.yaml:12: turn 1, step 1: output_tokens: expected a whole number; found "many"',
    ),
    (
        "output_tokens: 32",
        "output_tokens: yes",
        "s.yaml:12: turn 1, step 1: output_tokens: expected a whole number; found yes, which YAML reads as true",
    ),
    ("output_tokens: 32", "output_tokens: 0", "s.yaml:12: turn 1, step 1: output_tokens: must be at least 1; found 0"),
    (
        "        output_tokens: 16\n",
        "",
        "s.yaml:13: turn 1, step 2: output_tokens is missing; `length: forced` needs it on "
        "every step (or write `length: free`)",
    ),
    ("answer: Done.", "text: Done.", "s.yaml:13: turn 1, step 2: a step needs `calls` or an `answer`"),
    ("      - answer: Done.\n", "        answer: Done.\n", None),
    (
        "answer: Done.",
        "answer: Done.\n        text: x",
        "s.yaml:14: turn 1, step 2: text: `text` stands beside calls; put all of it into the `answer`",
    ),
    (
        "      - answer: Done.\n        output_tokens: 16\n",
        "",
        "s.yaml:9: turn 1, step 1: the last step of a turn must be an `answer`, since nothing follows its calls",
    ),
    (
        "workspace: files",
        "workspace: fils",
        's.yaml:2: workspace: there is no folder "fils"; paths are relative to the scenario file',
    ),
    (
        "workspace: files",
        "workspace: prompt.md",
        "s.yaml:2: workspace: prompt.md is not a folder; paths are relative to the scenario file",
    ),
    (
        "system: prompt.md",
        "system: files",
        "s.yaml:3: system: files is not a file; paths are relative to the scenario file",
    ),
    ("turns:", "digest: abc\nturns:", None),
    (
        "turns:",
        "mode: scriptd\nturns:",
        's.yaml:5: mode: "scriptd" is not one of: scripted, live. Did you mean "scripted"?',
    ),
    (
        "turns:",
        "cache: off\nturns:",
        "s.yaml:5: cache: off, which YAML reads as false is not one of: production, isolated, shared.",
    ),
    (
        "turns:",
        "limits: {steps: 1}\nturns:",
        "s.yaml:5: limits.steps: 1 are allowed, but the turns have 2; raise limits.steps",
    ),
    ("turns:", "limits: {session: 0s}\nturns:", "s.yaml:5: limits.session: must be more than 0; found 0s"),
    ("turns:", "limits: 5m\nturns:", 's.yaml:5: limits: expected `key: value` pairs; found "5m"'),
    (
        "turns:",
        "sampling: {temperature: .inf}\nturns:",
        "s.yaml:5: sampling.temperature: expected a number; found the number .inf",
    ),
    ("turns:", "checks: [ok, 3]\nturns:", "s.yaml:5: check 2: expected text; found the number 3; put it in quotes"),
    ("turns:", "name: again\nturns:", 's.yaml:5: "name" is written twice (first in line 1); keep one'),
]


@pytest.mark.parametrize(("old", "new", "expected"), MISTAKES, ids=[str(index) for index in range(len(MISTAKES))])
def test_a_mistake_is_named_with_its_line(folder: Path, old: str, new: str, expected: str | None) -> None:
    found = changed(folder, old, new)
    if expected is not None:
        assert expected in found
    assert all(line.startswith("s.yaml:") for line in found)
    assert not any("pydantic" in line or "tuple" in line or "Input should" in line for line in found)


def test_what_only_the_loader_fills_cannot_be_written(folder: Path) -> None:
    for key in ("digest", "system_text", "source"):
        assert changed(folder, "turns:", f"{key}: x\nturns:")[0].startswith(f's.yaml:5: "{key}" is not a key here.')


def test_an_answer_stands_beside_no_calls_and_before_no_steps(folder: Path) -> None:
    beside = changed(folder, "        output_tokens: 32\n", "        output_tokens: 32\n        answer: x\n")
    assert beside == [
        "s.yaml:13: turn 1, step 1: answer: an `answer` ends the turn, so it can't stand beside `calls`; "
        "write those words as `text`"
    ]
    before = changed(folder, "    steps:\n", "    steps:\n      - {answer: early, output_tokens: 5}\n")
    assert before == [
        "s.yaml:9: turn 1, step 1: answer: an `answer` ends the turn, but more steps follow; "
        "write words beside calls as `text`"
    ]


def test_all_problems_come_at_once_in_the_order_of_the_file(folder: Path) -> None:
    text = (
        GOOD.replace("name: small", "name: BAD").replace("search]", "serach]").replace("32", "0").replace("1.5s", "5")
    )
    lines = [int(line.split(":")[1]) for line in problems(write(folder, text))]
    assert lines == [1, 4, 7, 12]


def test_scripted_mode_needs_steps_and_live_mode_does_not(folder: Path) -> None:
    head = GOOD[: GOOD.index("    think")]
    assert problems(write(folder, head)) == [
        "s.yaml:6: turn 1: steps is missing; `mode: scripted` needs the steps of every turn (or write `mode: live`)"
    ]
    assert load_scenario(write(folder, "mode: live\n" + head)).turns[0].steps == ()


def test_free_length_needs_no_output_tokens(folder: Path) -> None:
    text = GOOD.replace("        output_tokens: 16\n", "").replace("        output_tokens: 32\n", "")
    assert load_scenario(write(folder, "length: free\n" + text)).length == "free"


NOT_YAML = [
    (b"", "s.yaml:1: the file is empty; docs/scenarios.md and docs/backends.md show what to write"),
    (b"# only a comment\n", "s.yaml:1: the file is empty; docs/scenarios.md and docs/backends.md show what to write"),
    (b"- a\n- b\n", "s.yaml:1: expected `key: value` lines at the top; found a list"),
    (b"words\n", "s.yaml:1: expected `key: value` lines at the top; found text"),
    (b"name: x\n\ttools: [a]\n", "s.yaml:2: not YAML: a tab; YAML is indented with spaces"),
    (b"a: 1\nname: \xff\n", "s.yaml:2: not UTF-8 (byte 0xff); save the file as UTF-8"),
    (b"a: 1\nb: \x01\n", "s.yaml:2: a control character (0x01) that YAML doesn't allow"),
    (b'a: 1\nname: "abc\nb: 2\n', "s.yaml:2: not YAML: a quote that is never closed"),
    (b"user: fix: it\n", 's.yaml:1: not YAML: a ":" that YAML can\'t place; check the indentation, or use quotes'),
    (
        b"a:\n  b: 1\n c: 2\n",
        "s.yaml:3: not YAML: this line doesn't line up with those above it; check the indentation",
    ),
    (b"a: 1\n---\nb: 2\n", 's.yaml:2: not YAML: a second document ("---"); write one file each'),
    (b"a: *x\n", "s.yaml:1: not YAML: an alias (*) of something that has no anchor (&); put text with a * in quotes"),
    (b"a: &a [*a]\n", "s.yaml:1: aliases (*) that never end; write the values out"),
    (
        b"a: !!python/object:os.system x\n",
        "s.yaml:1: the tag !!python/object:os.system isn't read here; write plain values",
    ),
    (b"{a: b}: c\n", "s.yaml:1: a key that isn't text; put a value that begins with { or [ in quotes"),
    (b'a: "\\ud800"\n', "s.yaml:1: half of a surrogate pair, which is no text; write the character itself"),
    (b"a: " + b"[" * 3000, "s.yaml: nested too deeply to be read"),
]


@pytest.mark.parametrize(("raw", "expected"), NOT_YAML, ids=[str(index) for index in range(len(NOT_YAML))])
def test_what_is_not_a_yaml_mapping_is_one_line(tmp_path: Path, raw: bytes, expected: str) -> None:
    assert problems(write(tmp_path, raw)) == [expected]


def test_aliases_of_aliases_end(tmp_path: Path) -> None:
    text = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 40))
    assert problems(write(tmp_path, text))[0].endswith("aliases (*) that never end; write the values out")


def test_what_cannot_be_opened_is_one_line(tmp_path: Path) -> None:
    assert problems(tmp_path / "gone.yaml") == ["gone.yaml: there is no such file"]
    (tmp_path / "d").mkdir()
    assert problems(tmp_path / "d") == ["d: is a folder; name a file in it"]
    assert len(problems(tmp_path / ("x" * 300))) == 1


def test_a_byte_order_mark_and_windows_lines_load(folder: Path) -> None:
    raw = b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode()
    assert load_scenario(write(folder, raw)).turns[0].user == "Fix it."


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.data())
def test_damaged_files_never_raise_anything_else(folder: Path, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(GOOD)))
    cut = data.draw(st.integers(0, 20))
    junk = data.draw(st.text(st.sampled_from(list("{}[]:-&*!|>'\"%@` \n\t#,?1ax~<\ud7ff")), max_size=12))
    path = write(folder, GOOD[:at] + junk + GOOD[at + cut :])
    try:
        found = str(load_scenario(path).source)
    except InputError as error:
        found = str(error)
    assert all(line.startswith(str(path)) for line in found.splitlines())


BACKENDS = """\
backends:
  old:
    base_url: http://127.0.0.1:8000/v1
    model: qwen
    api_key_env: OLD_KEY
    labels: {engine: vllm, version: 0.10, speculative: off}
    extra_body: {chat_template_kwargs: {enable_thinking: false}}
  new: {base_url: "https://[::1]:8001/v1", model: qwen}
"""


def test_backends_come_back_in_order_with_labels_as_written(tmp_path: Path) -> None:
    backends = load_backends(write(tmp_path, BACKENDS, "b.yaml"))
    assert list(backends) == ["old", "new"]
    assert backends["old"].labels == {"engine": "vllm", "version": "0.10", "speculative": "off"}
    assert backends["old"].extra_body == {"chat_template_kwargs": {"enable_thinking": False}}
    assert backends["old"].name == "old"
    assert backends["new"].api_key_env is None


def test_backends_may_share_lines_through_merge_keys(tmp_path: Path) -> None:
    text = """\
    backends:
      a: &a {base_url: http://h/v1, model: m, labels: {engine: vllm}}
      b: {<<: *a, model: n}
      c: {<<: *a}
      d: *a
    """
    backends = load_backends(write(tmp_path, textwrap.dedent(text)))
    assert [backend.model for backend in backends.values()] == ["m", "n", "m", "m"]
    assert backends["d"].name == "d"


BACKEND_MISTAKES = [
    (
        "base_url: http://127.0.0.1:8000/v1",
        "base_url: 127.0.0.1:8000",
        'b.yaml:3: backend "old": base_url: expected a URL such as http://127.0.0.1:8000/v1; it usually ends in /v1',
    ),
    (
        "base_url: http://127.0.0.1:8000/v1",
        "base_url: http://h:99999/v1",
        'b.yaml:3: backend "old": base_url: expected a URL such as http://127.0.0.1:8000/v1; it usually ends in /v1',
    ),
    (
        "base_url: http://127.0.0.1:8000/v1",
        "base_url: http://h/v1/chat/completions",
        'b.yaml:3: backend "old": base_url: expected the part before /chat/completions; it usually ends in /v1',
    ),
    (
        "    model: qwen\n",
        "",
        'b.yaml:2: backend "old": "model" is missing: the model\'s name as the server lists it under /v1/models',
    ),
    (
        "    model: qwen\n",
        "    modle: qwen\n",
        'b.yaml:4: backend "old": "modle" is not a key here. Keys: base_url, model, '
        'api_key_env, extra_body, labels. Did you mean "model"?',
    ),
    (
        "    model: qwen\n",
        "    model: 3\n",
        'b.yaml:4: backend "old": model: expected text; found the number 3; put it in quotes',
    ),
    (
        "    model: qwen\n",
        "    model: qwen\n    name: x\n",
        'b.yaml:5: backend "old": "name" is not a key here. Keys: base_url, model, api_key_env, extra_body, labels.',
    ),
    ("engine: vllm", "engine: [vllm]", 'b.yaml:6: backend "old": labels.engine: expected text; found a list'),
    (
        "chat_template_kwargs",
        "messages",
        'b.yaml:7: backend "old": extra_body: messages is set by each request, so it can\'t stand here',
    ),
    (
        "{enable_thinking: false}",
        "[{x: .nan}]",
        'b.yaml:7: backend "old": extra_body: holds .nan or .inf, which JSON can\'t say',
    ),
    (
        "  new:",
        "  new one:",
        'b.yaml:8: backend "new one": name: may hold letters, digits and . _ - and begins with a '
        'letter or digit; found "new one"',
    ),
    ("  new:", "  new:\n  newer:", 'b.yaml:8: backend "new": expected base_url and model as `key: value` lines'),
    ("backends:", "other: 1\nbackends:", 'b.yaml:1: "other" is not a key here. Keys: backends.'),
]


@pytest.mark.parametrize(("old", "new", "expected"), BACKEND_MISTAKES, ids=range(len(BACKEND_MISTAKES)))
def test_a_mistake_in_backends_is_named_with_its_line(tmp_path: Path, old: str, new: str, expected: str) -> None:
    assert BACKENDS.count(old) == 1
    assert expected in problems(write(tmp_path, BACKENDS.replace(old, new), "b.yaml"))


@pytest.mark.parametrize("text", ["backends:\n", "backends: []\n", "backends: {}\n"])
def test_no_backends_is_one_line(tmp_path: Path, text: str) -> None:
    assert problems(write(tmp_path, text)) == [
        "s.yaml:1: backends: expected at least one, written `NAME: {base_url: …, model: …}`"
    ]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("OLD_KEY", SECRET),
        ("OLD_KEY", "hf_AbCdEfGhIjKlMnOpQrStUvWx"),
        ("OLD_KEY", "0a1b2c3d4e5f60718293a4b5"),
        ("OLD_KEY", "$OLD_KEY-" + SECRET),
        ("OLD_KEY", f"[{SECRET}]"),
        ("OLD_KEY", f"{{key: {SECRET}}}"),
        ("api_key_env: OLD_KEY", f"api_key: {SECRET}"),
        ("http://127.0.0.1:8000/v1", f"http://user:{SECRET}@127.0.0.1:8000/v1"),
        ("http://127.0.0.1:8000/v1", f"user:{SECRET}@127.0.0.1:8000"),
        ("http://127.0.0.1:8000/v1", f"http://h:{SECRET}/v1"),
        ("http://127.0.0.1:8000/v1", f"http://h/v1?api_key={SECRET}"),
    ],
)
def test_secrets_in_the_wrong_place_are_refused_and_never_shown(tmp_path: Path, old: str, new: str) -> None:
    secret = new.removeprefix("http://")
    found = "\n".join(problems(write(tmp_path, BACKENDS.replace(old, new), "b.yaml")))
    assert found
    assert SECRET not in found
    assert secret not in found


def test_a_backend_from_options_is_checked_alike() -> None:
    backend = make_backend("x", {"base_url": "http://127.0.0.1:8000/v1", "model": "m"})
    assert backend == Backend(name="x", base_url="http://127.0.0.1:8000/v1", model="m")
    with pytest.raises(InputError) as raised:
        make_backend("x", {"base_url": f"http://u:{SECRET}@h/v1", "model": ""})
    assert str(raised.value).splitlines() == [
        'backend "x": base_url: a user or password in the URL (not shown); name a variable in api_key_env instead',
        'backend "x": model: is empty',
    ]


def test_validate_tells_good_files_from_bad_ones(folder: Path) -> None:
    good, bad = write(folder, GOOD), write(folder, GOOD.replace("search]", "serach]"), "bad.yaml")
    backends = write(folder, BACKENDS, "b.yaml")
    result = CliRunner().invoke(validate, [str(good), str(bad), str(backends)])
    assert result.exit_code == 2
    assert result.stdout.splitlines() == [
        f"{good}: scripted scenario small: 1 turn; 2 steps; tools bash, read_file, search; 0 checks",
        f"{backends}: 2 backends: old (qwen at http://127.0.0.1:8000/v1), new (qwen at https://[::1]:8001/v1)",
    ]
    assert result.stderr.splitlines()[0].startswith(f'{bad}:4: tools: "serach" is not a tool.')
    assert CliRunner().invoke(validate, [str(good), str(backends)]).exit_code == 0


def test_validate_needs_a_file_and_shows_an_example() -> None:
    assert CliRunner().invoke(validate, []).exit_code == 2
    assert "agentprof validate scenarios/*.yaml backends.yaml" in CliRunner().invoke(validate, ["--help"]).stdout


DOCS = Path(__file__).parents[2] / "docs"


def test_every_key_is_documented_with_its_default() -> None:
    text = (DOCS / "scenarios.md").read_text()
    filled = {"system_text", "source", "digest"}
    for model in (Scenario, Sampling, Limits, Turn, Step):
        for key in model.model_fields.keys() - filled:
            assert f"\n| `{key}` |" in text, key
    for key, written in {"session": "10m", "tool": "60s"}.items():
        assert f"| `{key}` | `{written}` |" in text
    for key in ("steps", "output_tokens", "tool_output_bytes", "tool_memory_mib"):
        assert f"| `{key}` | `{getattr(Limits(), key)}` |" in text
    backends = (DOCS / "backends.md").read_text()
    for key in Backend.model_fields.keys() - {"name"}:
        assert f"\n| `{key}` |" in backends, key


@pytest.mark.parametrize("name", ["scenarios.md", "backends.md"])
def test_the_examples_of_the_documentation_load(tmp_path: Path, name: str) -> None:
    (tmp_path / "workspaces" / "dateparse").mkdir(parents=True)
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts" / "coder.md").write_text("x")
    blocks = re.findall(r"```yaml\n(.*?)```", (DOCS / name).read_text(), re.DOTALL)
    whole = [block for block in blocks if not block.startswith("- ")]
    assert whole
    for block in whole:
        assert loading.load_written(write(tmp_path, block))
