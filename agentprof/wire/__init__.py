"""One streamed call, from bytes to numbers.

The sans-IO half needs no socket: `sse` (bytes → events), `assemble` (events and arrival stamps → message, token
events, usage), `tool_calls`, `reports` and `stream_errors` (what servers say in the stream), `figures` and `shape`
(one call's numbers). The other half talks: `transport`, `client`, `dialects`, `failures`.
"""
