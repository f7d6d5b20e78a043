"""The server's counters, told at /metrics under vLLM's names."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from agentprof.serve.sim.reports import Account

_HISTOGRAMS = {
    "time_to_first_token_seconds": "From arrival to the first token.",
    "inter_token_latency_seconds": "Mean gap between the tokens of a request.",
    "e2e_request_latency_seconds": "From arrival to the last token.",
    "request_queue_time_seconds": "Waiting for a slot.",
    "request_prefill_time_seconds": "From the slot to the first token.",
    "request_decode_time_seconds": "From the first token to the last.",
    "request_inference_time_seconds": "From the slot to the last token.",
    "request_prompt_tokens": "Prompt tokens of a request.",
    "request_generation_tokens": "Output tokens of a request.",
}


@dataclass(slots=True)
class Counters:
    """Sums over all requests that reached their last token, and the cache lookups of all that were scheduled."""

    model: str
    totals: Counter[str] = field(default_factory=Counter)
    sums: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    finished: Counter[str] = field(default_factory=Counter)
    accepted_at: Counter[int] = field(default_factory=Counter)

    def add_lookup(self, prompt_tokens: int, cached_tokens: int) -> None:
        """A prompt was looked up in the prefix cache."""
        self.totals["prefix_cache_queries"] += prompt_tokens
        self.totals["prefix_cache_hits"] += cached_tokens

    def add_finished(self, account: Account, finish: str, arrived_ns: int) -> None:
        """A request reached its last token."""
        self.finished["stop" if finish == "tool_calls" else finish] += 1
        self.totals["prompt_tokens"] += account.prompt_tokens
        self.totals["generation_tokens"] += account.output_tokens
        if account.draft_tokens:
            self.totals["spec_decode_num_drafts"] += account.decode_steps
            self.totals["spec_decode_num_draft_tokens"] += account.draft_tokens
            self.totals["spec_decode_num_accepted_tokens"] += account.accepted_draft_tokens
        decode = account.last_token_ns - account.first_token_ns
        self._observe("time_to_first_token_seconds", (account.first_token_ns - arrived_ns) / 1e9)
        self._observe("e2e_request_latency_seconds", (account.last_token_ns - arrived_ns) / 1e9)
        self._observe("request_queue_time_seconds", (account.queue_end_ns - account.queue_start_ns) / 1e9)
        self._observe("request_prefill_time_seconds", (account.prefill_end_ns - account.queue_end_ns) / 1e9)
        self._observe("request_decode_time_seconds", decode / 1e9)
        self._observe("request_inference_time_seconds", (account.last_token_ns - account.queue_end_ns) / 1e9)
        self._observe("request_prompt_tokens", account.prompt_tokens)
        self._observe("request_generation_tokens", account.output_tokens)
        if account.output_tokens > 1:
            self._observe("inter_token_latency_seconds", decode / (account.output_tokens - 1) / 1e9)

    def _observe(self, name: str, value: float) -> None:
        self.sums[name] += value  # type: ignore[assignment]  # sums of seconds are fractions
        self.counts[name] += 1

    def render(self, running: int, waiting: int, cached_blocks: int, blocks: int, block_tokens: int) -> str:
        """The Prometheus text format."""
        labels = f'engine="0",model_name="{self.model}"'
        lines: list[str] = []

        def tell(name: str, kind: str, samples: list[tuple[str, str, float]]) -> None:
            lines.append(f"# TYPE vllm:{name} {kind}")
            lines.extend(f"vllm:{name}{suffix}{{{labels}{extra}}} {value}" for suffix, extra, value in samples)

        tell("num_requests_running", "gauge", [("", "", running)])
        tell("num_requests_waiting", "gauge", [("", "", waiting)])
        tell("kv_cache_usage_perc", "gauge", [("", "", cached_blocks / blocks if blocks else 0.0)])
        config = f',block_size="{block_tokens}",num_gpu_blocks="{blocks}",enable_prefix_caching="{blocks > 0}"'
        tell("cache_config_info", "gauge", [("", config, 1.0)])
        tell("num_preemptions_total", "counter", [("", "", 0.0)])
        names = ["prompt_tokens", "generation_tokens", "prefix_cache_queries", "prefix_cache_hits"]
        spec = [f"spec_decode_num_{what}" for what in ("drafts", "draft_tokens", "accepted_tokens")]
        for name in names + (spec if self.totals[spec[0]] else []):
            tell(f"{name}_total", "counter", [("", "", float(self.totals[name]))])
        if self.accepted_at:
            positions = [("", f',position="{at}"', float(self.accepted_at[at])) for at in sorted(self.accepted_at)]
            tell("spec_decode_num_accepted_tokens_per_pos_total", "counter", positions)
        reasons = [("", f',finished_reason="{reason}"', float(self.finished[reason])) for reason in ("stop", "length")]
        tell("request_success_total", "counter", reasons)
        for name, text in _HISTOGRAMS.items():
            lines.append(f"# HELP vllm:{name} {text}")
            count = float(self.counts[name])
            samples = [("_bucket", ',le="+Inf"', count), ("_sum", "", float(self.sums[name])), ("_count", "", count)]
            tell(name, "histogram", samples)
        return "\n".join(lines) + "\n"
