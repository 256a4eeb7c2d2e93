"""Errors as OpenAI's API tells them: a true status code, and one envelope.

Knows nothing about what went wrong. Invariant: each error says what the client can do about it: fix
`param`, or come back after `retry_after_s`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(eq=False)
class ApiError(Exception):
    status: int
    message: str
    type: str = "invalid_request_error"
    param: str | None = None
    code: str | None = None
    retry_after_s: int | None = None

    def __str__(self) -> str:
        return self.message

    def body(self) -> dict[str, Any]:
        error = {
            "message": self.message,
            "type": self.type,
            "param": self.param,
            "code": self.code,
        }
        return {"error": error}

    def headers(self) -> dict[str, str]:
        return {} if self.retry_after_s is None else {"Retry-After": str(self.retry_after_s)}


def invalid(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    return ApiError(400, message, param=param, code=code)


def unsupported(param: str) -> ApiError:
    return invalid(f"{param} is not supported", param, "unsupported_parameter")


def not_found(message: str, code: str, param: str | None = None) -> ApiError:
    return ApiError(404, message, param=param, code=code)


def too_long(message: str, param: str) -> ApiError:
    return invalid(message, param, "context_length_exceeded")


def unavailable(message: str, retry_after_s: int = 1) -> ApiError:
    """Nothing is wrong with the request: the same one will be served later."""
    return ApiError(
        503,
        message,
        type="service_unavailable",
        code="service_unavailable",
        retry_after_s=retry_after_s,
    )


def queue_full(message: str, retry_after_s: int) -> ApiError:
    return ApiError(
        429, message, type="rate_limit_error", code="queue_full", retry_after_s=retry_after_s
    )


def internal(message: str) -> ApiError:
    return ApiError(500, message, type="server_error", code="internal_error")
