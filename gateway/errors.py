"""Every refusal the gateway can utter: one tree, with status, code and type on the class.

``type`` is OpenAI's word for the family of the error, ``code`` the exact one (also ``x-gateway-reason`` and the
label of ``gateway_rejections_total``). ``retry_after_s`` says when coming back makes sense; ``None`` says nothing,
and ``should_retry`` ``False`` tells SDKs that waiting does not help.
"""

from __future__ import annotations

from typing import ClassVar

from gateway.domain import Outcome


class GatewayError(Exception):
    """A refusal with an answer for the client. ``message`` is shown to the client: no prompt, no key in it."""

    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal_error"
    type: ClassVar[str] = "server_error"
    outcome: ClassVar[Outcome] = Outcome.INTERNAL
    should_retry: ClassVar[bool | None] = None

    def __init__(self, message: str, *, param: str | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s


class InvalidRequest(GatewayError):
    """The request cannot be parsed."""

    status, code, type, outcome = 400, "invalid_request", "invalid_request_error", Outcome.REFUSED


class ContextTooLong(GatewayError):
    """The prompt and its answer fit no replica, now or ever."""

    status, code, type, outcome = 400, "context_length_exceeded", "invalid_request_error", Outcome.REFUSED


class InvalidKey(GatewayError):
    """No key, an unknown one, an expired or revoked one."""

    status, code, type, outcome = 401, "invalid_api_key", "authentication_error", Outcome.REFUSED


class Forbidden(GatewayError):
    """A known key, but not one that may do this."""

    status, code, type, outcome = 403, "forbidden", "permission_error", Outcome.REFUSED


class NotFound(GatewayError):
    """No such path."""

    status, code, type, outcome = 404, "not_found", "invalid_request_error", Outcome.REFUSED


class MethodNotAllowed(GatewayError):
    """The path exists, but not for this method."""

    status, code, type, outcome = 405, "method_not_allowed", "invalid_request_error", Outcome.REFUSED


class ModelNotFound(GatewayError):
    """Unknown, or not allowed to this key: the same answer, so that nothing can be probed for."""

    status, code, type, outcome = 404, "model_not_found", "invalid_request_error", Outcome.REFUSED


class RequestTimeout(GatewayError):
    """The client took too long to send its headers or body."""

    status, code, type, outcome = 408, "request_timeout", "invalid_request_error", Outcome.REFUSED


class RequestTooLarge(GatewayError):
    """The body is over ``server.body_bytes_max``."""

    status, code, type, outcome = 413, "request_too_large", "invalid_request_error", Outcome.REFUSED


class HeadersTooLarge(GatewayError):
    """The header section is over ``server.header_bytes_max`` or ``server.header_count_max``."""

    status, code, type, outcome = 431, "headers_too_large", "invalid_request_error", Outcome.REFUSED


class Suspended(GatewayError):
    """A limit of 0: the team may run nothing until an administrator changes it."""

    status, code, type, outcome = 429, "insufficient_quota", "insufficient_quota", Outcome.REFUSED
    should_retry = False


class Unavailable(GatewayError):
    """503: the gateway's side of the fleet cannot take the call now."""

    status, type = 503, "service_unavailable_error"


class QueueFull(Unavailable):
    """The waiting room has no place left."""

    code, outcome = "queue_full", Outcome.QUEUE_FULL


class QueueTimeout(Unavailable):
    """No permit came free within the wait limit of the call's class."""

    code, outcome = "queue_timeout", Outcome.QUEUE_TIMEOUT


class NoReplica(Unavailable):
    """No replica that could ever serve the call is up."""

    code, outcome = "no_replica", Outcome.NO_REPLICA


class Draining(Unavailable):
    """The gateway is shutting down."""

    code, outcome = "draining", Outcome.DRAINING


class UpstreamError(GatewayError):
    """The replica refused, broke or closed before its first byte."""

    status, code, type, outcome = 502, "upstream_error", "upstream_error", Outcome.UPSTREAM_ERROR


class UpstreamTimeout(GatewayError):
    """The replica did not answer in time, before its first byte."""

    status, code, type, outcome = 504, "upstream_timeout", "upstream_error", Outcome.UPSTREAM_TIMEOUT


class UpstreamCut(GatewayError):
    """The replica died after its first byte; sent as an SSE error event, never as a status."""

    status, code, type, outcome = 502, "upstream_error", "upstream_error", Outcome.UPSTREAM_CUT
