"""Spans: what they are called, how their ids are made, and how they are exported.

Knows nothing about schedulers or models. Invariant: without an exporter in the environment nothing
here is made, and OpenTelemetry's SDK is not even imported by us; `tracer.py`, `exporters.py` and
`provider.py` are all that know it.
"""
