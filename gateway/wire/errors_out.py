"""A refusal in the shape its client expects: Anthropic's on ``/v1/messages``, OpenAI's everywhere else."""

from __future__ import annotations

from gateway.domain import Endpoint
from gateway.errors import GatewayError
from gateway.wire import anthropic, openai

_ANTHROPIC = frozenset({Endpoint.MESSAGES, Endpoint.COUNT_TOKENS})


def render_error(error: GatewayError, endpoint: Endpoint | None) -> bytes:
    """Return the JSON body for ``error``; ``endpoint`` is ``None`` where the path is none of the model's."""
    return anthropic.error_body(error) if endpoint in _ANTHROPIC else openai.error_body(error)


def render_sse_error(error: GatewayError, endpoint: Endpoint | None) -> bytes:
    """Return the event that ends a stream broken by ``error``."""
    if endpoint in _ANTHROPIC:
        return anthropic.sse_error(error)
    if endpoint is Endpoint.RESPONSES:
        return openai.sse_response_error(error)
    return openai.sse_error(error)
