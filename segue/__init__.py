"""What the services share.

Invariant: this runs before gRPC is imported, which reads its experiments only then. Its event
engine hands each message from a pool of four threads to a fifth, and that one to the event loop.
In the older transport the fifth polls by itself, which saves CPU and wake-ups of each
message (docs/performance.md). `GRPC_EXPERIMENTS` of one's own is left alone.
"""

import os

os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client,-event_engine_listener")
