"""A probed backend as plain text: what a call of a given size takes there, and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence

from agentprof.analysis.points import CallSize
from agentprof.analysis.probe import ProbeFit
from agentprof.report.layout import MISSING, count, ms, rate, table, wrap

_FOLLOWING_TOKENS = 128
_SHOWN_LENGTHS = (64, 256, 1024, 4096, 16_384, 65_536)


def render_probe(probe: ProbeFit, name: str, width: int = 100) -> str:
    """What the probe found, in lines of at most `width`."""
    blocks = [
        wrap(_sentence(probe, name), width),
        _sizes(probe, width),
        _formula(probe, width),
        wrap(_cache(probe), width),
        wrap(drafting_sentence(probe), width),
        wrap(_noise(probe), width),
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def _sentence(probe: ProbeFit, name: str) -> str:
    least, most = probe.ranges.uncached_tokens
    return (
        f"{name}: {probe.calls} requests of {probe.groups} kinds, with {count(least)} to {count(most)} new prompt "
        f"tokens and contexts up to {count(probe.ranges.context_tokens)} tokens."
    )


def _sizes(probe: ProbeFit, width: int) -> list[str]:
    """TTFT of new and of mostly cached prompts, and the speed of decoding behind them."""
    lengths = [length for length in _SHOWN_LENGTHS if 1.2 * length < probe.ranges.prompt_tokens]
    lengths.append(round(probe.ranges.prompt_tokens))
    rows = [("TTFT, all new, ms", *(ms(_ttft(probe, length, 0)) for length in lengths))]
    if probe.has_cache:
        cached = [max(0, length - _FOLLOWING_TOKENS) for length in lengths]
        cells = (
            ms(_ttft(probe, length - held, held)) if held else MISSING
            for length, held in zip(lengths, cached, strict=True)
        )
        rows.append((f"TTFT, {_FOLLOWING_TOKENS} new, ms", *cells))
    if not probe.is_unsplit:
        tpots = [_tpot(probe, length) for length in lengths]
        rows.append(("ms per token", *(ms(tpot) for tpot in tpots)))
        rows.append(("decode tok/s", *(rate(1e9 / tpot) if tpot else MISSING for tpot in tpots)))
    headers = ("prompt tokens", *(count(length) for length in lengths))
    return table(headers, rows, left=(0,), width=width)


def _ttft(probe: ProbeFit, new: float, cached: float) -> float:
    fit = probe.fits["generation"] if probe.is_unsplit else probe.ttft
    return fit.ns(CallSize(new, cached, 1, 0, 0, 0, 0).terms())


def _tpot(probe: ProbeFit, context: float) -> float | None:
    """Time for one token behind a prompt of this length, drafts as on the probe's text."""
    fit = probe.fits.get("decode")
    if fit is None:
        return None
    per_step = probe.drafting.tokens_per_step if probe.drafting else 1.0
    drafted = probe.drafting.drafted_per_step if probe.drafting else 0.0
    return fit.ns(CallSize(0, context, 0, per_step, 1, drafted, 0).terms()) / per_step


def _formula(probe: ProbeFit, width: int) -> list[str]:
    terms = (probe.fits["generation"] if probe.is_unsplit else probe.ttft).coefficients
    parts = [f"{ms(terms.get('once', 0.0))} ms"]
    if "uncached" in terms:
        parts.append(f"{_fine(terms['uncached'])} ms for each new prompt token")
    if "cached" in terms:
        parts.append(f"{_fine(terms['cached'])} ms for each cached one")
    if "prompt" in terms:
        parts.append(f"{_fine(terms['prompt'])} ms for each prompt token")
    if "pairs" in terms:
        parts.append(f"{_fine(terms['pairs'] * 1e6)} ms for each million pairs of a new token and one before it")
    what = "Unsplit generation, before its tokens" if probe.is_unsplit else "TTFT"
    return wrap(f"{what} = {' + '.join(parts)}.", width)


def _fine(ns: float) -> str:
    return f"{ns / 1e6:.3g}"


def _cache(probe: ProbeFit) -> str:
    if probe.has_cache is None:
        return "Prompt cache: the probe can't tell."
    if not probe.has_cache:
        return "Prompt cache: none; a prompt that was just sent is computed again."
    block = f", in blocks of {probe.block_tokens} tokens" if probe.block_tokens > 1 else ""
    return f"Prompt cache: yes{block}."


def drafting_sentence(probe: ProbeFit) -> str:
    """How drafts fare; empty where there are none."""
    known = probe.drafting
    if known is None:
        return ""
    drafted = f" of {known.drafted_per_step:.2f} drafted" if known.drafted_per_step else ""
    return f"Drafts: {known.tokens_per_step:.2f} tokens per decoding step{drafted}, on {known.source}."


def _noise(probe: ProbeFit) -> str:
    shown = {
        "prefill": "prefill",
        "first_token_wait": "first-token wait",
        "decode": "decode",
        "generation": "generation",
    }
    rows: Sequence[str] = [row for row in shown if row in probe.noise and probe.fits[row].coefficients]
    if "prefill" in rows:
        rows = [row for row in rows if row != "first_token_wait"]
    known = ", ".join(f"{shown[row]} {100 * probe.noise[row]:.1f} %" for row in rows)
    return f"Repeated requests differed (standard deviation): {known}." if known else "No request was repeated."
