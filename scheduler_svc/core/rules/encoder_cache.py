"""Embeddings of multimodal items that the executor keeps: which, and for whom (specification 12).

Knows nothing about budgets of a step. Invariant: an item that a request still needs is not evicted;
the others go oldest first, and only when room is needed.
"""

from __future__ import annotations

from scheduler_svc.core.request import Request


class EncoderCache:
    """Sizes are in embeddings. `num_free` + the sizes of all cached items = the cache's size.

    A request holds its items one by one, by their index; an item that stands in it twice is needed
    until both places were processed.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self.clear()

    def clear(self) -> None:
        self._num_free = self._size
        self._num_freeable = self._size  # free, or cached for nobody
        self._users: dict[str, set[str]] = {}  # item hash -> request ids
        self._held: dict[str, set[int]] = {}  # request id -> indices of its items
        self._unused: dict[str, int] = {}  # item hash -> size, the longest unused first
        self._evicted: list[str] = []

    def hold_if_cached(self, request: Request, index: int) -> bool:
        """Hold the item, if it is there."""
        item_hash = request.mm_items[index].item_hash
        users = self._users.get(item_hash)
        if users is None:
            return False
        if not users:
            self._num_freeable -= self._unused.pop(item_hash)
        users.add(request.request_id)
        self.hold_again(request, index)
        return True

    def hold_again(self, request: Request, index: int) -> None:
        """The item stands in the request at another place too, which holds or computes it."""
        self._held.setdefault(request.request_id, set()).add(index)

    def make_room(self, num_embeddings: int) -> bool:
        """Evict what is unused until so many embeddings fit; False if they cannot."""
        if num_embeddings <= self._num_free:
            return True
        if num_embeddings > self._num_freeable:
            return False
        while num_embeddings > self._num_free:
            item_hash = next(iter(self._unused))
            self._num_free += self._unused.pop(item_hash)
            del self._users[item_hash]
            self._evicted.append(item_hash)
        return True

    def add(self, request: Request, index: int) -> None:
        """The item is computed in this step, and held."""
        item = request.mm_items[index]
        self._users.setdefault(item.item_hash, set()).add(request.request_id)
        self.hold_again(request, index)
        self._num_free -= item.length
        self._num_freeable -= item.length
        assert self._num_free >= 0

    def held(self, request: Request) -> list[int]:
        return sorted(self._held.get(request.request_id, ()))

    def release(self, request: Request, index: int) -> None:
        held = self._held[request.request_id]
        held.remove(index)
        if not held:
            del self._held[request.request_id]
        item = request.mm_items[index]
        users = self._users.get(item.item_hash)
        if not users or any(request.mm_items[i].item_hash == item.item_hash for i in held):
            return
        users.remove(request.request_id)
        if not users:
            self._unused[item.item_hash] = item.length
            self._num_freeable += item.length

    def take_evicted(self) -> list[str]:
        """What the executor can drop: evicted, and not computed again in the same step."""
        evicted, self._evicted = self._evicted, []
        return [item_hash for item_hash in evicted if item_hash not in self._users]
