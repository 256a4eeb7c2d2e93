"""The load generator of `segue bench`: any OpenAI server, closed loop or arrivals in time.

Knows HTTP and OpenAI's events, nothing of our services. Invariant: a figure comes from answers that
came in full; what failed is counted and shown beside it.
"""
