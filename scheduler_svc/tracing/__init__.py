"""Spans of steps and requests, made from what the core was told and what it decided.

Knows the core's events, plans and state, and reads them only. Invariant: nothing here changes what
is decided, and nothing here waits.
"""
