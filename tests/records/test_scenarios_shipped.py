"""The scenarios that ship: checks fail before and pass after, scripted calls succeed, and sizes hold."""

import asyncio
import dataclasses
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agentprof.agent.masking import mask
from agentprof.agent.tools import ToolLimits, ToolResult, execute
from agentprof.agent.workspace import Workspace, copy_workspace, remove_workspace
from agentprof.records.loading import load_scenario
from agentprof.records.scenario import Scenario, Step
from agentprof.records.tools import TOOLS

SHIPPED = Path(__file__).parents[2] / "scenarios"
CHARS_PER_TOKEN = 3.8

SHORTENED = {"report-turn": ("rig.ini", "baud = 2400", "baud = 57600")}
"""Scenarios whose commands wait as long as a setting of their workspace says: file, text, the text in its place."""


@dataclasses.dataclass
class Rehearsal:
    """What came of running a scenario's trajectory without a model: characters of each call's prompt, tool results."""

    prompt_chars: list[int]
    results: list[list[ToolResult]]

    @property
    def last_prompt_tokens(self) -> float:
        return self.prompt_chars[-1] / CHARS_PER_TOKEN


def limits_of(scenario: Scenario) -> ToolLimits:
    limits = scenario.limits
    return ToolLimits(limits.tool, limits.tool_memory_mib, limits.tool_output_bytes)


@contextmanager
def workspace_of(scenario: Scenario) -> Iterator[Workspace]:
    """A copy of the scenario's workspace, in which nothing waits longer than it must."""
    workspace = copy_workspace(scenario.workspace)
    try:
        if scenario.name in SHORTENED:
            name, old, new = SHORTENED[scenario.name]
            text = (workspace.root / name).read_text()
            assert old in text
            (workspace.root / name).write_text(text.replace(old, new))
        yield workspace
    finally:
        remove_workspace(workspace)


def run_checks(scenario: Scenario, workspace: Workspace) -> list[int | None]:
    async def run() -> list[int | None]:
        limits = limits_of(scenario)
        return [(await execute("bash", {"command": c}, workspace, limits, None)).exit_code for c in scenario.checks]

    return asyncio.run(run())


async def run_step(step: Step, workspace: Workspace, limits: ToolLimits) -> list[ToolResult]:
    calls = (execute(use.name, use.arguments, workspace, limits, None) for use in step.calls)
    return list(await asyncio.gather(*calls))


def rehearse(scenario: Scenario, workspace: Workspace) -> Rehearsal:
    tools = sum(len(json.dumps(TOOLS[name].definition())) for name in scenario.tools)
    rehearsal = Rehearsal([], [])
    prompt = len(scenario.system_text) + tools
    for turn in scenario.turns:
        prompt += len(turn.user)
        for step in turn.steps:
            rehearsal.prompt_chars.append(prompt)
            results = asyncio.run(run_step(step, workspace, limits_of(scenario)))
            rehearsal.results.append(results)
            calls = sum(len(json.dumps(use.arguments)) + len(use.name) for use in step.calls)
            prompt += len(step.text or "") + len(step.answer or "") + calls + sum(len(r.output) for r in results)
    return rehearsal


@pytest.mark.parametrize("name", sorted(path.stem for path in SHIPPED.glob("*.yaml")))
def test_checks_fail_before_and_pass_after_the_scripted_steps(name: str) -> None:
    scenario = load_scenario(SHIPPED / f"{name}.yaml")
    assert scenario.name == name
    assert scenario.checks
    with workspace_of(scenario) as workspace:
        assert all(code != 0 for code in run_checks(scenario, workspace))
        rehearsal = rehearse(scenario, workspace)
        errors = [result.output for results in rehearsal.results for result in results if result.is_error]
        assert errors == []
        assert not any(result.is_truncated for results in rehearsal.results for result in results)
        assert run_checks(scenario, workspace) == [0] * len(scenario.checks)
    smallest, largest = PROMPT_TOKENS[name]
    assert smallest <= rehearsal.last_prompt_tokens <= largest


PROMPT_TOKENS = {
    "fix-failing-test": (1_200, 2_500),
    "add-feature": (2_000, 3_200),
    "slow-tests": (2_500, 4_000),
    "bug-hunt": (8_500, 14_000),
    "report-turn": (13_000, 18_000),
}
"""Bounds of the last call's prompt: what the embedded engine on a CPU can take, and what is meant to be long."""


@pytest.mark.parametrize("name", ["fix-failing-test", "add-feature", "bug-hunt", "report-turn"])
def test_two_sessions_see_the_same_tool_output(name: str) -> None:
    scenario = load_scenario(SHIPPED / f"{name}.yaml")
    seen = []
    for _ in range(2):
        with workspace_of(scenario) as workspace:
            results = rehearse(scenario, workspace).results
            seen.append([mask(result.output, workspace) for step in results for result in step])
    assert seen[0] == seen[1]


def test_each_shipped_scenario_has_a_size() -> None:
    assert PROMPT_TOKENS.keys() == {path.stem for path in SHIPPED.glob("*.yaml")}


def test_the_demo_is_small_enough_for_a_cpu() -> None:
    scenario = load_scenario(SHIPPED / "fix-failing-test.yaml")
    steps = [step for turn in scenario.turns for step in turn.steps]
    assert 4 <= len(steps) <= 6
    assert max(len(step.calls) for step in steps) == 2
    assert all(24 <= (step.output_tokens or 0) <= 64 for step in steps)
    assert scenario.limits.session == 300 * 10**9


def test_the_feature_is_built_with_parallel_calls_over_two_turns() -> None:
    scenario = load_scenario(SHIPPED / "add-feature.yaml")
    steps = [step for turn in scenario.turns for step in turn.steps]
    assert len(scenario.turns) == 2
    assert scenario.turns[1].think > 0
    assert 6 <= len(steps) <= 9
    groups = [{use.name for use in step.calls} for step in steps if len(step.calls) > 1]
    assert {"read_file"} in groups
    assert {"write_file", "edit_file"} in groups


def test_the_bug_hunt_searches_and_grows_past_8k_tokens() -> None:
    scenario = load_scenario(SHIPPED / "bug-hunt.yaml")
    steps = [step for turn in scenario.turns for step in turn.steps]
    assert 10 <= len(steps) <= 16
    assert sum(use.name in ("search", "read_file", "list_files") for step in steps for use in step.calls) >= 10


def test_the_slow_tests_run_three_at_once() -> None:
    scenario = load_scenario(SHIPPED / "slow-tests.yaml")
    steps = [step for turn in scenario.turns for step in turn.steps]
    assert 6 <= len(steps) <= 8
    assert [use.name for step in steps for use in step.calls if len(step.calls) == 3].count("bash") == 3
    assert sum(use.name == "bash" for step in steps for use in step.calls) >= 5


def test_the_report_turn_is_one_turn_of_2700_tokens_in_17_calls() -> None:
    scenario = load_scenario(SHIPPED / "report-turn.yaml")
    [turn] = scenario.turns
    assert len(turn.steps) == 17
    assert sum(step.output_tokens or 0 for step in turn.steps) == 2700
    used = {use.name for step in turn.steps for use in step.calls}
    assert used == set(scenario.tools)


@pytest.mark.parametrize("path", sorted(SHIPPED.glob("*.yaml")), ids=lambda path: path.stem)
def test_parallel_calls_do_not_touch_one_file_twice(path: Path) -> None:
    """Two edits of one file at once would report line numbers that depend on which came first."""
    for turn in load_scenario(path).turns:
        for step in turn.steps:
            written = [use.arguments["path"] for use in step.calls if use.name in ("edit_file", "write_file")]
            assert len(written) == len(set(written))
