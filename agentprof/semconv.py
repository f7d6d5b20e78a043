"""Every span and attribute name agentprof writes or reads: nowhere else is one spelled.

OpenTelemetry's GenAI conventions are in development and their PyPI constants are deprecated, so the strings are
pinned here. What the conventions lack is under `agentprof.*`. Names ending in `_ns` hold integer nanoseconds.
"""

from __future__ import annotations

# Span names. `chat`, `invoke_agent`, `execute_tool`, `step` and `attempt` are followed by a space and a word.
PREPARE_WORKSPACE = "prepare_workspace"
INVOKE_AGENT = "invoke_agent"
CHECKS = "checks"
CHECK = "check"
STEP = "step"
PREPARE = "prepare"
CHAT = "chat"
ATTEMPT = "attempt"
BACKOFF = "backoff"
CONNECT = "connect"
SEND = "send"
FIRST_TOKEN_WAIT = "first_token_wait"
DECODE = "decode"
GENERATION = "generation"
TAIL = "tail"
PARSE = "parse"
DISPATCH = "dispatch"
EXECUTE_TOOL = "execute_tool"
THINK = "think"

# OpenTelemetry GenAI conventions and neighbours.
OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
AGENT_NAME = "gen_ai.agent.name"
CONVERSATION_ID = "gen_ai.conversation.id"
REQUEST_MODEL = "gen_ai.request.model"
REQUEST_STREAM = "gen_ai.request.stream"
REQUEST_MAX_TOKENS = "gen_ai.request.max_tokens"
REQUEST_TEMPERATURE = "gen_ai.request.temperature"
REQUEST_SEED = "gen_ai.request.seed"
RESPONSE_ID = "gen_ai.response.id"
RESPONSE_MODEL = "gen_ai.response.model"
FINISH_REASONS = "gen_ai.response.finish_reasons"
TIME_TO_FIRST_CHUNK = "gen_ai.response.time_to_first_chunk"  # seconds, float
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
CACHED_TOKENS = "gen_ai.usage.cache_read.input_tokens"
REASONING_TOKENS = "gen_ai.usage.reasoning.output_tokens"
TOOL_NAME = "gen_ai.tool.name"
TOOL_CALL_ID = "gen_ai.tool.call.id"
TOOL_TYPE = "gen_ai.tool.type"
SERVER_ADDRESS = "server.address"
SERVER_PORT = "server.port"
ERROR_TYPE = "error.type"
OPENINFERENCE_KIND = "openinference.span.kind"

# The session, on its `invoke_agent` root span.
SESSION_ID = "agentprof.session.id"
SCENARIO = "agentprof.scenario"
BACKEND = "agentprof.backend"
REPETITION = "agentprof.repetition"  # from 1
WARMUP = "agentprof.warmup"
MODE = "agentprof.mode"
LENGTH = "agentprof.length"
HISTORY = "agentprof.history"
CACHE = "agentprof.cache"
OUTCOME = "agentprof.outcome"
OUTCOME_REASON = "agentprof.outcome.reason"
LAG_P99_NS = "agentprof.client.lag_p99_ns"  # event-loop lag while streams were open
LAG_MAX_NS = "agentprof.client.lag_max_ns"

# Checks, on the `checks` root span and its `check` children.
CHECKS_PASSED = "agentprof.checks.passed"
CHECK_COMMAND = "agentprof.check.command"

# Steps.
STEP_NUMBER = "agentprof.step"  # from 1, over the whole session
TURN_NUMBER = "agentprof.turn"  # from 1

# The call, on its `chat` span. Absent = not measured.
ATTEMPTS = "agentprof.attempts"
POOL_WAIT_NS = "agentprof.pool_wait_ns"
TTFT_NS = "agentprof.ttft_ns"
TTFO_NS = "agentprof.ttfo_ns"
FIRST_EVENT_NS = "agentprof.first_event_ns"
RTT_NS = "agentprof.rtt_ns"  # TCP_INFO least round trip, first hop
GATEWAY_NS = "agentprof.gateway_ns"  # as the gateway reports
QUEUE_NS = "agentprof.server.queue_ns"  # as the server reports
PREFILL_NS = "agentprof.server.prefill_ns"
SERVER_DECODE_NS = "agentprof.server.decode_ns"
SERVER_SOURCE = "agentprof.server.source"  # llama.cpp timings, vllm metrics, …
PREFILLED_TOKENS = "agentprof.server.prefilled_tokens"
DRAFT_TOKENS = "agentprof.server.draft_tokens"
ACCEPTED_TOKENS = "agentprof.server.accepted_draft_tokens"
DECODE_STEPS = "agentprof.server.decode_steps"
FIRST_READ_TOKENS = "agentprof.first_read_tokens"
TOKEN_EVENTS = "agentprof.token_events"
OUTPUT_TOKENS_SOURCE = "agentprof.output_tokens_source"  # server | counted
FORCED_TOKENS = "agentprof.forced_tokens"  # what length: forced asked for
DECODE_REASONING_NS = "agentprof.decode.reasoning_ns"  # decode, split by what the tokens were
DECODE_ANSWER_NS = "agentprof.decode.answer_ns"
DECODE_TOOL_CALL_NS = "agentprof.decode.tool_call_ns"
DECODE_HIDDEN_NS = "agentprof.decode.hidden_ns"
PEAK_INTERVAL_TOK_S = "agentprof.peak_interval_tok_s"
TOOL_CALLS = "agentprof.tool_calls"  # JSON text: [{"name", "arguments"}]
FLAGS = "agentprof.flags"  # list of short words, see docs/metrics.md
ERROR_KIND = "agentprof.error.kind"
ERROR_MESSAGE = "agentprof.error.message"
HTTP_STATUS = "http.response.status_code"

# The attempt, on `attempt`, `connect` and `backoff` spans.
ATTEMPT_NUMBER = "agentprof.attempt"  # from 1
DNS_NS = "agentprof.connect.dns_ns"
TCP_NS = "agentprof.connect.tcp_ns"
TLS_NS = "agentprof.connect.tls_ns"
REUSED = "agentprof.connect.reused"
RECONNECTS = "agentprof.connect.reconnects"
RETRY_AFTER_NS = "agentprof.retry_after_ns"

# Requests of a probe, on their `invoke_agent` root span.
PROBE_KIND = "agentprof.probe.kind"  # new | follow | at_once | own_text
PROBE_PROMPT_TOKENS = "agentprof.probe.prompt_tokens"  # meant, where the server doesn't count them
PROBE_SHARED_TOKENS = "agentprof.probe.shared_tokens"  # of them sent just before: a prompt cache holds them

# Tools, on `execute_tool`.
EXIT_CODE = "agentprof.tool.exit_code"
OUTPUT_BYTES = "agentprof.tool.output_bytes"
TIMED_OUT = "agentprof.tool.timed_out"
TRUNCATED = "agentprof.tool.truncated"
SANDBOXED = "agentprof.tool.sandboxed"
