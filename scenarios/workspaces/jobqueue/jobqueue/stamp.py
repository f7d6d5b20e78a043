"""A proof of work: cheap to check, expensive to make."""

import hashlib
from itertools import count


def make(text, bits):
    """The first number whose digest together with the text begins with so many zero bits."""
    return next(number for number in count() if check(text, bits, number))


def check(text, bits, number):
    """Whether a number is a stamp of the text."""
    digest = hashlib.sha256(f"{text}:{number}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> (64 - bits) == 0
