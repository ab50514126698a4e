"""Chooses who watches an answer, by endpoint and content type."""

from __future__ import annotations

from gateway.domain import Endpoint
from gateway.wire import anthropic, openai
from gateway.wire.document import JsonWatcher, PlainWatcher
from gateway.wire.facts import Watcher
from gateway.wire.sse import SseWatcher

__all__ = ["Watcher", "watch"]


def watch(endpoint: Endpoint, content_type: bytes, strip_usage: bool) -> Watcher:
    """Return a fresh watcher for one answer.

    ``content_type`` is the response header's value. ``strip_usage`` removes the usage-only chunk that the gateway
    asked for and the client did not; only OpenAI's chat and completions streams have one.
    """
    kind = content_type.partition(b";")[0].strip().lower()
    if kind == b"text/event-stream":
        match endpoint:
            case Endpoint.MESSAGES:
                return SseWatcher(anthropic.read_event)
            case Endpoint.RESPONSES:
                return SseWatcher(openai.read_response_event, openai.read_response_tail)
            case _:
                return SseWatcher(openai.read_chunk, strip_usage=strip_usage)
    if kind == b"application/json" or kind.endswith(b"+json"):
        match endpoint:
            case Endpoint.MESSAGES | Endpoint.COUNT_TOKENS:
                return JsonWatcher(anthropic.read_body)
            case Endpoint.RESPONSES:
                return JsonWatcher(openai.read_response_body)
            case _:
                return JsonWatcher(openai.read_body)
    return PlainWatcher()
