"""Which fault meets which request."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from agentprof.serve.sim.profile import Fault, Profile
from agentprof.serve.sim.requests import Refused


def choose_fault(faults: Sequence[Fault], seed: int, number: int, age_ns: float) -> Fault | None:
    """The first fault that meets request `number` of a server of this (unscaled) age; equal for equal seeds."""
    for index, fault in enumerate(faults):
        draw = Random(f"{seed}:{index}:{number}").random()  # noqa: S311
        if number in fault.requests or number <= fault.first or age_ns < fault.until or draw < fault.rate:
            return fault
    return None


def refuse(fault: Fault) -> Refused | None:
    """The HTTP error that a fault answers with; None for faults that aren't answers."""
    if fault.kind == "loading":
        return Refused(503, "unavailable_error", "Loading model")
    if fault.kind != "http":
        return None
    kinds = {
        400: ("BadRequestError", "The request was refused by its profile."),
        401: ("AuthenticationError", "The API key was refused."),
        429: ("RateLimitError", "Too many requests; try again later."),
        503: ("ServiceUnavailableError", "The server is overloaded."),
    }
    kind, message = kinds.get(fault.status, ("InternalServerError", "The engine failed on this request."))
    return Refused(fault.status, kind, message)


def is_loading(profile: Profile, next_number: int, age_ns: float) -> bool:
    """Whether /health should say that the model is loading still."""
    return any(
        fault.kind == "loading" and (next_number <= fault.first or age_ns < fault.until) for fault in profile.faults
    )
