"""The simulated engine without its network: prefix cache, slots, times, tokens per step."""

from __future__ import annotations

import asyncio
from itertools import islice
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentprof.clock import now_ns
from agentprof.serve.sim.cache import PrefixCache, block_keys, extend_keys
from agentprof.serve.sim.deadlines import Deadlines
from agentprof.serve.sim.profile import Profile, Speculation
from agentprof.serve.sim.slots import Slots
from agentprof.serve.sim.timing import Pace, cut_steps, draw_lengths, length_probabilities, mean_length

MS = 1_000_000


def words(start: int, count: int) -> list[str]:
    return [f"w{number}" for number in range(start, start + count)]


def test_a_prompt_finds_whole_blocks_and_always_leaves_one_token_to_compute() -> None:
    cache = PrefixCache(block_tokens=4, blocks=100)
    prompt = words(0, 10)
    assert cache.lookup(block_keys(prompt, 4), 10) == 0
    cache.insert(block_keys(prompt, 4))
    assert cache.lookup(block_keys(prompt, 4), 10) == 8
    assert cache.lookup(block_keys(prompt[:8], 4), 8) == 4  # all 8 are held; the last block is computed again
    assert cache.lookup(block_keys(prompt[:9], 4), 9) == 8
    changed = [*prompt[:5], "other", *prompt[6:]]
    assert cache.lookup(block_keys(changed, 4), 10) == 4
    assert cache.lookup(block_keys(["other", *prompt[1:]], 4), 10) == 0


def test_a_salt_isolates() -> None:
    cache = PrefixCache(4, 100)
    cache.insert(block_keys(words(0, 8), 4, "a"))
    assert cache.lookup(block_keys([*words(0, 8), "x"], 4, "a"), 9) == 8
    assert cache.lookup(block_keys([*words(0, 8), "x"], 4, "b"), 9) == 0
    assert cache.lookup(block_keys([*words(0, 8), "x"], 4), 9) == 0


def test_the_least_recently_used_goes_and_of_one_sequence_its_end_first() -> None:
    cache = PrefixCache(4, blocks=4)
    first, second = block_keys(words(0, 12), 4), block_keys(words(100, 8), 4)
    cache.insert(first)
    cache.insert(second)  # 5 blocks wanted, 4 held
    assert cache.lookup(first, 100) == 8
    assert len(cache) == 4
    cache.lookup(second, 100)
    cache.insert(block_keys(words(200, 8), 4))
    assert cache.lookup(second, 100) == 8
    assert cache.lookup(first, 100) == 0


def test_no_blocks_means_no_cache() -> None:
    cache = PrefixCache(4, 0)
    cache.insert(block_keys(words(0, 8), 4))
    assert (len(cache), cache.lookup(block_keys(words(0, 8), 4), 8)) == (0, 0)


@given(st.lists(st.lists(st.sampled_from("ab"), max_size=20), max_size=12), st.integers(1, 5))
def test_without_eviction_a_lookup_is_the_longest_common_prefix_in_blocks(prompts: list[list[str]], size: int) -> None:
    cache = PrefixCache(size, 10_000)
    seen: list[list[str]] = []
    for prompt in prompts:
        common = [sum(1 for _ in _common(prompt, other)) // size * size for other in seen]
        limit = max(0, len(prompt) - 1) // size * size
        assert cache.lookup(block_keys(prompt, size), len(prompt)) == min(max(common, default=0), limit)
        cache.insert(block_keys(prompt, size))
        seen.append(prompt)


def _common(one: list[str], other: list[str]) -> list[str]:
    length = 0
    while length < min(len(one), len(other)) and one[length] == other[length]:
        length += 1
    return one[:length]


def test_keys_made_in_portions_are_the_same_keys() -> None:
    pieces, keys = words(0, 50), []
    while len(keys) < 50 // 4:
        extend_keys(keys, pieces, 4, "salt", limit=3)
    assert keys == block_keys(pieces, 4, "salt")


def test_prefill_and_step_times_follow_the_formulas() -> None:
    profile = Profile.model_validate(
        {
            "prefill": {"base": "10ms", "per_token": "0.5ms", "attention": "2ms"},
            "decode": {"step": "8ms", "per_context_token": "0.001ms", "per_sequence": "3ms"},
        }
    )
    pace = Pace.of(profile, 1.0)
    assert pace.prefill_ns(100, 0, Random(1)) == 60 * MS + 10_000  # 100 · 50 pairs at 2 ns
    assert pace.prefill_ns(100, 1000, Random(1)) == 60 * MS + 210_000
    assert pace.step_ns(2000, 0, Random(1)) == 10 * MS
    assert pace.step_ns(2000, 2, Random(1)) == 16 * MS
    scaled = Pace.of(profile, 10.0)
    assert scaled.prefill_ns(100, 0, Random(1)) == 6 * MS + 1_000
    assert scaled.step_ns(2000, 2, Random(1)) == 1_600_000


def test_jitter_adds_up_to_its_bound() -> None:
    profile = Profile.model_validate({"prefill": {"base": "1ms", "per_token": "0ms", "jitter": "4ms"}})
    random = Random(3)
    times = [Pace.of(profile, 1.0).prefill_ns(10, 0, random) for _ in range(200)]
    assert min(times) >= MS
    assert max(times) <= 5 * MS
    assert max(times) - min(times) > 3 * MS


def test_tpot_times_acceptance_length_is_the_step() -> None:
    profile = Profile.model_validate(
        {"decode": {"tpot": "4.89ms"}, "speculation": {"draft_tokens": 7, "acceptance_length": 7.58}}
    )
    assert Pace.of(profile, 1.0).step == pytest.approx(4.89e6 * 7.58, rel=1e-9)
    assert Pace.of(Profile.model_validate({"decode": {"tpot": "5ms"}}), 1.0).step == 5e6


@pytest.mark.parametrize(("drafts", "length"), [(7, 7.58), (3, 2.5), (5, 1.0), (4, 5.0)])
def test_acceptance_has_the_wanted_mean_within_a_few_decks(drafts: int, length: float) -> None:
    shares = length_probabilities(Speculation(draft_tokens=drafts, acceptance_length=length))
    assert len(shares) == drafts + 1
    assert sum(shares) == pytest.approx(1)
    assert mean_length(shares) == pytest.approx(length, abs=1e-6)
    lengths = list(islice(draw_lengths(shares, Random(5)), 320))
    assert sum(lengths) / 320 == pytest.approx(length, rel=0.01)
    assert set(lengths) <= set(range(1, drafts + 2))


def test_steps_follow_the_given_distribution() -> None:
    lengths = list(islice(draw_lengths((0.5, 0.0, 0.25, 0.25), Random(1)), 32 * 50))
    assert [lengths.count(tokens) / len(lengths) for tokens in (1, 2, 3, 4)] == pytest.approx(
        [0.5, 0, 0.25, 0.25], abs=0.005
    )
    assert lengths[:32] != lengths[32:64]


def test_steps_are_cut_to_the_tokens_wanted() -> None:
    assert cut_steps(0, iter([])) == []
    assert cut_steps(1, iter([])) == [1]
    assert cut_steps(10, iter([4, 4, 4])) == [1, 4, 4, 1]


def test_slots_pass_on_in_order_with_the_scheduled_time() -> None:
    async def scene() -> list[tuple[str, int]]:
        slots, got = Slots(1), []

        async def enter(name: str, ready_ns: int) -> None:
            got.append((name, await slots.acquire(ready_ns)))

        assert await slots.acquire(100) == 100
        waiting = [asyncio.create_task(enter(name, ready)) for name, ready in (("a", 110), ("b", 500), ("c", 120))]
        await asyncio.sleep(0)
        assert (slots.running, slots.waiting) == (1, 3)
        for released_ns in (300, 400, 600, 700):
            slots.release(released_ns)
            await asyncio.sleep(0)
        await asyncio.gather(*waiting)
        assert (slots.running, slots.waiting) == (0, 0)
        return got

    assert asyncio.run(scene()) == [("a", 300), ("b", 500), ("c", 600)]


def test_a_client_that_leaves_the_queue_frees_its_place() -> None:
    async def scene() -> None:
        slots = Slots(1)
        await slots.acquire(0)
        gone, next_one = asyncio.create_task(slots.acquire(1)), asyncio.create_task(slots.acquire(2))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        assert slots.waiting == 1
        slots.release(10)
        assert await next_one == 10
        late = asyncio.create_task(slots.acquire(3))
        await asyncio.sleep(0)
        slots.release(20)  # passed on to `late`, which is cancelled before it wakes
        late.cancel()
        await asyncio.gather(late, return_exceptions=True)
        assert slots.running == 0

    asyncio.run(scene())


def test_deadlines_are_never_early_and_fire_in_order() -> None:
    async def scene() -> list[tuple[int, int]]:
        deadlines, woke = Deadlines(), []

        async def wait(at_ns: int) -> None:
            await deadlines.until(at_ns)
            woke.append((at_ns, now_ns()))

        start = now_ns()
        offsets = [30, 5, 12, 12, 0, 21]
        await asyncio.gather(*(wait(start + offset * MS) for offset in offsets))
        deadlines.close()
        return woke

    woke = asyncio.run(scene())
    assert [at for at, _ in woke] == sorted(at for at, _ in woke)
    assert all(seen >= at for at, seen in woke)
    assert max(seen - at for at, seen in woke) < 200 * MS
