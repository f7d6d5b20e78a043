"""Jobs in threads, with retries and limits."""

from jobqueue.backoff import Backoff
from jobqueue.rate import RateLimit
from jobqueue.worker import Job, Queue

__all__ = ["Backoff", "Job", "Queue", "RateLimit"]
