"""The executor service: knows tensors, no text and no queue.

Invariant: whatever imports a part of it has told OpenMP, before torch is loaded, that threads which
wait for each other sleep. They spin otherwise, and where any other process needs a core a step of
two threads takes ten times as long (docs/performance.md). OMP_WAIT_POLICY in the environment wins.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
