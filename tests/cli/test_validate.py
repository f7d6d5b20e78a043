"""`agentprof validate`: each kind of file told by its keys, every mistake with its line."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from small_scenarios import write_scenario

from agentprof.cli.validate import validate

BACKENDS = "backends:\n  new: {base_url: http://127.0.0.1:8001/v1, model: tiny}\n"
PROFILE = "name: one-gpu\nmodel: tiny\nengine: llama.cpp\ndecode: {tpot: 5ms}\ncache: {blocks: 0}\n"


def outcome(*files: Path) -> tuple[int, str, str]:
    result = CliRunner().invoke(validate, [str(file) for file in files])
    return result.exit_code, result.stdout, result.stderr


def written(folder: Path, name: str, text: str) -> Path:
    file = folder / name
    file.write_text(text)
    return file


def test_each_kind_says_what_it_holds(tmp_path: Path) -> None:
    scenario = write_scenario(tmp_path / "scenario")
    files = [scenario, written(tmp_path, "b.yaml", BACKENDS), written(tmp_path, "p.yaml", PROFILE)]
    code, out, err = outcome(*files)
    assert (code, err) == (0, "")
    first, second, third = out.splitlines()
    assert first.startswith(f"{scenario}: scripted scenario ")
    assert second.endswith("b.yaml: 1 backend: new (tiny at http://127.0.0.1:8001/v1)")
    assert third.endswith("p.yaml: profile one-gpu: simulates llama.cpp serving tiny; agentprof serve sim runs it")


@pytest.mark.parametrize(
    "path", sorted(Path(__file__).parents[2].glob("scenarios/**/*.yaml")), ids=lambda path: path.stem
)
def test_the_files_that_come_with_agentprof_are_right(path: Path) -> None:
    code, out, err = outcome(path)
    assert (code, err) == (0, "")
    assert (": profile " in out) == (path.parent.name == "backends")


def test_a_mistake_in_a_profile_is_told_as_a_profiles(tmp_path: Path) -> None:
    file = written(tmp_path, "p.yaml", "prefil: {base: 3ms}\ndecode: {step: 5}\n")
    code, out, err = outcome(file)
    assert (code, out) == (2, "")
    first, second = err.splitlines()
    assert first.startswith(f'{file}:1: "prefil" is not a key here. Keys: name, model, engine')
    assert first.endswith('Did you mean "prefill"?')
    assert second.startswith(f"{file}:2: decode.step: 5 is not a duration")


def test_a_profiles_certificate_is_looked_at(tmp_path: Path) -> None:
    code, _, err = outcome(written(tmp_path, "p.yaml", "tls: {cert: nope.pem, key: nope.key}\n"))
    assert code == 2
    assert err.startswith(f"tls: {tmp_path}/nope.pem and {tmp_path}/nope.key can't be used")


def test_a_bad_file_does_not_hide_the_others(tmp_path: Path) -> None:
    bad, good = written(tmp_path, "bad.yaml", "turns: 3\n"), written(tmp_path, "b.yaml", BACKENDS)
    code, out, err = outcome(bad, tmp_path / "none.yaml", good)
    assert code == 2
    assert out.startswith(f"{good}: 1 backend")
    assert "none.yaml: there is no such file" in err
    assert f'{bad}:1: "workspace" is missing' in err
