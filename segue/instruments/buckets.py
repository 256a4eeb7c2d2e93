"""Upper bounds of the histograms: vLLM 0.32's families, OpenTelemetry's for GenAI, and our own.

Knows nothing about what falls into them. Invariant: vLLM's and OpenTelemetry's are as published,
so that boards and rules that were written for them read ours.
"""

from __future__ import annotations

from itertools import takewhile

Buckets = tuple[float, ...]

FIRST_TOKEN_S: Buckets = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
INTER_TOKEN_S: Buckets = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
REQUEST_S: Buckets = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
ITERATION_TOKENS: Buckets = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
PARAMS_N: Buckets = (1, 2, 5, 10, 20)
NUM_PREEMPTIONS: Buckets = (1, 2, 3, 4, 5, 10, 20)

# 1, 2, 5, 10, … ; each service cuts it at the longest request that it can serve, as vLLM does.
REQUEST_TOKENS: Buckets = tuple(m * 10**e for e in range(8) for m in (1, 2, 5))

COMMIT_S: Buckets = (
    *(0.0002, 0.0003, 0.0004, 0.0005, 0.0006, 0.0008, 0.001, 0.0012, 0.0015, 0.002),
    *(0.003, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0),
)
PHASE_S: Buckets = (
    *(0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5),
)
EXECUTOR_STEP_S: Buckets = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0),
)
DRAFT_TOKENS: Buckets = (0, 1, 2, 3, 4, 5, 6, 7, 8, 16)

GEN_AI_REQUEST_S: Buckets = (
    *(0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92),
)
GEN_AI_FIRST_TOKEN_S: Buckets = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
)
GEN_AI_TOKEN_S: Buckets = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5),
)


def up_to(buckets: Buckets, longest: int) -> Buckets:
    """The bounds that something of at most `longest` can reach; at least the first."""
    return tuple(takewhile(lambda bound: bound <= longest, buckets)) or buckets[:1]
