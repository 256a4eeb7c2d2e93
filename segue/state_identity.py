"""Says whose state a Redis holds, so that no model is served on another one's.

Knows one hash beside the scheduler's rows; knows nothing about the rows. Invariant: it is written
where there is none, and never changed but for the schema: another model, quantisation or block
size, or a schema that a scheduler of this version does not read, needs a fresh state.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from typing import Any, cast

from redis.exceptions import RedisError

from segue.embedded_redis import RedisUnusable, connect, without_password
from segue.model_files.model_directory import UNQUANTIZED
from segue.redis_client import close_redis
from segue.version import OLDEST_STATE_SCHEMA_VERSION

_NAMES = {
    "model_fingerprint": "another model",
    "block_size": "another block size",
    "schema_version": "another schema version",
    "quantization": "another quantization",
}


class StateMismatch(Exception):
    """The state is another one's; the message is one readable line."""


@dataclass(slots=True, frozen=True)
class StateIdentity:
    """What a state can not be used without."""

    model_fingerprint: str
    block_size: int
    schema_version: int
    quantization: str = UNQUANTIZED


async def claim_state(url: str, deployment: str, identity: StateIdentity) -> None:
    """Raises StateMismatch where the deployment's state is of something else."""
    expected = {name: str(value) for name, value in asdict(identity).items()}
    tag = f"{{segue:{deployment}}}"
    async with _connected(url) as client:
        raw = cast("dict[bytes, bytes]", await client.hgetall(f"{tag}:identity"))
        found = {name.decode(): value.decode() for name, value in raw.items()}
        schema_version = cast("bytes | None", await client.hget(f"{tag}:meta", "schema_version"))
        if schema_version is not None:
            found["schema_version"] = schema_version.decode()
        if "model_fingerprint" in found:  # maybe from before there was a choice
            found.setdefault("quantization", UNQUANTIZED)
        version = int(found.get("schema_version", identity.schema_version))
        if OLDEST_STATE_SCHEMA_VERSION <= version < identity.schema_version:
            found.pop("schema_version", None)
        mismatches = [
            name for name in expected if found.get(name, expected[name]) != expected[name]
        ]
        if mismatches:
            raise StateMismatch(_line(mismatches, found, expected))
        await client.hset(f"{tag}:identity", mapping=expected)


async def require_sole_state(url: str, deployment: str) -> None:
    """For a Redis that is ours alone. Raises StateMismatch where it holds another deployment: its
    requests would stay there unseen."""
    async with _connected(url) as client:
        async for key in client.scan_iter(match="{segue:*}:identity", count=1000):
            other = key.decode().removeprefix("{segue:").removesuffix("}:identity")
            if other != deployment:
                raise StateMismatch(
                    f"the state is of deployment {other}, now {deployment}; --deployment {other} "
                    "goes on with it, --fresh discards it and starts anew"
                )


async def forget_state(url: str, deployment: str) -> None:
    """Removes every key of the deployment, for --fresh on a Redis that is not ours."""
    async with _connected(url) as client:
        async for key in client.scan_iter(match=f"{{segue:{deployment}}}:*", count=1000):
            await client.unlink(key)


@asynccontextmanager
async def _connected(url: str) -> AsyncGenerator[Any, None]:
    """A client, for as long as the block lasts; what Redis refuses in it is RedisUnusable."""
    client: Any = connect(url)
    try:
        yield client
    except (RedisError, OSError) as error:
        raise RedisUnusable(f"{without_password(url)}: {error}") from error
    finally:
        await close_redis(client)


def _line(mismatches: Iterable[str], found: dict[str, str], expected: dict[str, str]) -> str:
    parts = [
        f"{_NAMES[name]} ({found[name][:12]}, now {expected[name][:12]})" for name in mismatches
    ]
    return f"the state is of {' and of '.join(parts)}; --fresh discards it and starts anew"
