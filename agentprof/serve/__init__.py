"""Servers of our own.

`local`: a real small model, embedded. `sim`: a simulator whose truth is known. `record`: a recording proxy.
"""
