"""What a probe's calls say of a backend: a fit for each ledger row, the prompt cache, drafting, and how far it reaches.

Prefill (or the whole wait for the first token, where the server doesn't report it) is a + b·u + q·u·(c + u/2) + r·c for
u uncached and c cached prompt tokens. Decode is a time for each decoding step, more of it for each token of context and
each other call that decodes, and a time for each drafted token. What doesn't depend on the call is a median.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from math import gcd
from statistics import median

from agentprof.analysis.fit import Fit, Sample, fit_constant, fit_terms, misfit, relative_noise
from agentprof.analysis.frames import SessionFrame
from agentprof.analysis.points import (
    AT_ONCE,
    NEW_TOKENS_TERMS,
    OWN_TEXT,
    CallPoint,
    CallSize,
    call_points,
    samples_of,
)
from agentprof.errors import InputError

_DECODE_TERMS = ("step", "step_context", "drafted", "step_others")
_MOST_BLOCK_TOKENS = 1024
_TOLERANCE = 1.1
_DECODE_ONLY = frozenset({AT_ONCE, OWN_TEXT})
_ALONE = 0.05  # of another call's decoding beside one's own


@dataclass(frozen=True, slots=True)
class Drafting:
    """How drafts fare. tokens_per_step: Σ tokens / Σ decoding steps. drafted_per_step: drafted tokens in each step.

    source: `own text` (the run's own prompts, sent by the probe), `the run` (its calls' reports) or `synthetic text`.
    """

    tokens_per_step: float
    drafted_per_step: float
    source: str


@dataclass(frozen=True, slots=True)
class Ranges:
    """The largest and smallest calls that a probe made."""

    uncached_tokens: tuple[float, float]
    prompt_tokens: float
    context_tokens: float
    cached_tokens: float
    others: float

    def outside(self, size: CallSize) -> tuple[str, ...]:
        """In what a call lies outside of the probed range, by more than a tenth; empty where it doesn't."""
        least, most = self.uncached_tokens
        words = []
        if size.uncached_tokens > most * _TOLERANCE:
            words.append(f"{size.uncached_tokens:,.0f} new prompt tokens, probed to {most:,.0f}")
        if size.uncached_tokens < least / 2:
            words.append(f"{size.uncached_tokens:,.0f} new prompt tokens, probed from {least:,.0f}")
        if size.prompt_tokens > self.prompt_tokens * _TOLERANCE:
            words.append(f"a prompt of {size.prompt_tokens:,.0f} tokens, probed to {self.prompt_tokens:,.0f}")
        elif size.decoded_tokens and size.context_tokens > self.context_tokens * _TOLERANCE:
            words.append(f"a context of {size.context_tokens:,.0f} tokens, probed to {self.context_tokens:,.0f}")
        if size.cached_tokens and not self.cached_tokens:
            words.append("cached tokens, none probed")
        if size.decoded_tokens and size.others > self.others * _TOLERANCE + 0.25:
            words.append(f"{size.others:.1f} other calls at once, probed to {self.others:.1f}")
        return tuple(words)


@dataclass(frozen=True, slots=True)
class ProbeFit:
    """A backend as its probe knows it.

    fits: by ledger row; a row that no call measured is absent. is_unsplit: streams arrive buffered, so a call is one
    row, `generation`. block_tokens: of the prompt cache; 1 where that isn't known. has_cache: None where nothing tells.
    first_read_tokens: n₁. tells_prompt: the server counts prompt tokens; else they are those meant. noise: relative, by
    row, between repeated requests. models: names it was asked for. groups: different requests. without: the fit with
    each of the groups left out, for the interval.
    """

    fits: Mapping[str, Fit]
    is_unsplit: bool
    block_tokens: int
    has_cache: bool | None
    drafting: Drafting | None
    first_read_tokens: int
    tells_prompt: bool
    ranges: Ranges
    noise: Mapping[str, float]
    models: frozenset[str]
    calls: int
    groups: int
    without: tuple[ProbeFit, ...] = ()

    def rows_ns(self, size: CallSize) -> dict[str, float]:
        """The time of a call of this size, by ledger row."""
        terms = size.terms()
        return {row: fit.ns(terms) for row, fit in self.fits.items()}

    @property
    def ttft(self) -> Fit:
        """TTFT as one sum: the fits of its parts, added up term by term."""
        parts = [self.fits[row].coefficients for row in _TTFT_ROWS if row in self.fits]
        terms = list(dict.fromkeys(term for part in parts for term in part))
        return Fit({term: sum(part.get(term, 0.0) for part in parts) for term in terms})


_TTFT_ROWS = ("connect", "network", "gateway", "queue", "prefill", "first_token_wait")


def read_probe(sessions: Sequence[SessionFrame]) -> ProbeFit:
    """What the sessions of a probe (or any sessions of one backend) say of it.

    Raises InputError where no call of it can be used.
    """
    return fit_points(call_points(sessions))


def fit_points(points: Sequence[CallPoint], *, is_whole: bool = True) -> ProbeFit:
    """The same from calls. is_whole: also with each group left out, which takes as many fits as there are groups."""
    usable = [point for point in points if point.prompt_tokens is not None and point.output_tokens is not None]
    if all(point.kind in _DECODE_ONLY for point in usable):
        raise InputError(
            "the probe has no finished call whose prompt and output tokens are known. Does the server send usage "
            "(stream_options.include_usage)?"
        )
    is_unsplit = 2 * sum(point.is_unsplit for point in usable) > len(usable)
    kept = [point for point in usable if point.is_unsplit == is_unsplit]
    own_text = [point for point in kept if point.kind == OWN_TEXT]
    has_cache, on_own_text = _has_cache(kept), drafting(own_text, "own text")
    fitted = _fit(kept, on_own_text, has_cache, is_unsplit=is_unsplit)
    groups = list(dict.fromkeys(point.group for point in kept))
    if not is_whole or len(groups) < 2:
        return fitted
    rests = ([point for point in kept if point.group != left_out] for left_out in groups)
    without = [_fit(rest, on_own_text, has_cache, is_unsplit=is_unsplit) for rest in rests]
    return replace(fitted, without=tuple(without))


def _fit(
    points: Sequence[CallPoint], on_own_text: Drafting | None, has_cache: bool | None, *, is_unsplit: bool
) -> ProbeFit:
    sizes = [_size(point, has_cache) for point in points]
    return ProbeFit(
        fits=_fits(points, sizes, is_unsplit=is_unsplit),
        is_unsplit=is_unsplit,
        block_tokens=_block_tokens(points),
        has_cache=has_cache,
        drafting=on_own_text or drafting(points, "synthetic text"),
        first_read_tokens=round(median(point.call.first_read_tokens or 1 for point in points)),
        tells_prompt=all(point.call.prompt_tokens is not None for point in points),
        ranges=_ranges(points, sizes),
        noise=_noise(points, sizes),
        models=frozenset(point.call.model for point in points if point.call.model),
        calls=len(points),
        groups=len({point.group for point in points}),
    )


def drafting(points: Sequence[CallPoint], source: str) -> Drafting | None:
    """Acceptance over calls, Σ tokens / Σ decoding steps; None where no call tells of drafts."""
    known = [point for point in points if point.decoded_tokens and point.steps]
    if not any(point.drafted_tokens or point.call.server.decode_steps for point in known):
        return None
    steps = sum(point.steps for point in known)
    return Drafting(
        sum(point.decoded_tokens for point in known) / steps,
        sum(point.drafted_tokens or 0 for point in known) / steps,
        source,
    )


def _fits(points: Sequence[CallPoint], sizes: Sequence[CallSize], *, is_unsplit: bool) -> dict[str, Fit]:
    """A fit for each row that any of the calls measured."""
    is_prefill_reported = any(point.rows["prefill"] is not None for point in points)
    terms: dict[str, tuple[str, ...]] = {
        "connect": (),
        "network": ("once", "prompt"),
        "gateway": (),
        "queue": (),
        "prefill": NEW_TOKENS_TERMS,
        "first_token_wait": ("once", "prompt") if is_prefill_reported else NEW_TOKENS_TERMS,
        "decode": _DECODE_TERMS,
        "generation": (*NEW_TOKENS_TERMS, *_DECODE_TERMS[:2]) if is_unsplit else (),
        "tail": (),
    }
    found = {}
    for row, names in terms.items():
        samples = _samples(points, sizes, row)
        fit = fit_terms(names, samples) if names else fit_constant(samples, "once")
        if fit is not None:
            found[row] = fit
    return found


def _samples(points: Sequence[CallPoint], sizes: Sequence[CallSize], row: str) -> list[Sample]:
    """What the calls say of a row: of decoding all, of the rest those made alone, since others waited for one another.

    The run's own text, which one session sends again, tells of decoding only. Where none was made alone, all are taken.
    """
    pairs = list(zip(points, sizes, strict=True))
    if row == "decode":
        chosen = [(point, size) for point, size in pairs if size.steps]
    else:
        chosen = [(point, size) for point, size in pairs if _waits_alone(point, size)] or pairs
    return samples_of([point for point, _ in chosen], [size for _, size in chosen], row)


def _waits_alone(point: CallPoint, size: CallSize) -> bool:
    return size.others < _ALONE and point.kind not in _DECODE_ONLY


def _noise(points: Sequence[CallPoint], sizes: Sequence[CallSize]) -> dict[str, float]:
    noise = {row: relative_noise(_samples(points, sizes, row)) for row in points[0].rows}
    return {row: value for row, value in noise.items() if value is not None}


def _size(point: CallPoint, has_cache: bool | None) -> CallSize:
    prompt, output = point.prompt_tokens or 0, point.output_tokens or 0
    cached = point.cached_tokens
    if cached is None:
        cached = (point.meant_cached_tokens or 0) if has_cache else 0
    cached = min(cached, prompt)
    decoded, steps = point.decoded_tokens, point.steps
    if point.is_unsplit:
        decoded = steps = max(0, output - 1)
    return CallSize(prompt - cached, cached, output, decoded, steps, point.drafted_tokens or 0, point.others)


def _ranges(points: Sequence[CallPoint], sizes: Sequence[CallSize]) -> Ranges:
    alone = [size for point, size in zip(points, sizes, strict=True) if _waits_alone(point, size)] or list(sizes)
    new = [size.uncached_tokens for size in alone]
    return Ranges(
        (min(new), max(new)),
        max(size.prompt_tokens for size in alone),
        max(size.context_tokens for size in sizes),
        max(size.cached_tokens for size in alone),
        max(size.others for size in sizes),
    )


def _has_cache(points: Sequence[CallPoint]) -> bool | None:
    """Whether prompts are cached: as reported, else which of the two explains the waits better; None without a clue."""
    reported = [point.cached_tokens for point in points if point.cached_tokens is not None]
    if any(reported):
        return True
    if not any(point.meant_cached_tokens for point in points):
        return None
    return False if reported else _wait_misfit(points, has_cache=True) < _wait_misfit(points, has_cache=False)


def _wait_misfit(points: Sequence[CallPoint], *, has_cache: bool) -> float:
    waits = [
        Sample(point.group, _size(point, has_cache).terms(), float(ns))
        for point in points
        if point.kind not in _DECODE_ONLY
        and (ns := point.call.generation_ns if point.is_unsplit else point.call.wait_ns)
    ]
    fit = fit_terms(NEW_TOKENS_TERMS[:3], waits)  # a price per cached token would pass for prefilling them
    return 0.0 if fit is None else misfit(fit, waits)


def _block_tokens(points: Sequence[CallPoint]) -> int:
    """The prompt cache's block, in tokens; 1 where that can't be told.

    Cached tokens come in whole blocks, and of what was sent just before, less than one is missing: the smallest size
    with which both hold. Where none does (something was evicted), the largest power of two that divides them.
    """
    seen = [point for point in points if point.cached_tokens is not None]
    found = {point.cached_tokens for point in seen if point.cached_tokens}
    if len(found) < 2:
        return 1
    common = reduce(gcd, found, 0)
    missing = max((point.meant_cached_tokens or 0) - (point.cached_tokens or 0) for point in seen)
    sizes = (size for size in range(1, min(common, _MOST_BLOCK_TOKENS) + 1) if common % size == 0)
    return next((size for size in sizes if size > missing), min(common & -common, _MOST_BLOCK_TOKENS))
