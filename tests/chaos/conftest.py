"""All processes, for tests that kill them."""

from __future__ import annotations

from tests.served_fixtures import hand_model, serve, served

__all__ = ["hand_model", "serve", "served"]
