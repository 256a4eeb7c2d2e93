"""The executor service: knows tensors, no text and no queue.

Invariant: this runs before torch is imported, and OpenMP reads its settings only then. Its threads
wait for each other hundreds of times in a step. By default they spin for many milliseconds while
they wait, which stalls every step as soon as another service needs the core; asleep at once, they
cost each small operation a wake-up. So they spin for a moment, then sleep.
"""

import os

if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
