"""Words that the load client and the stand-in share.

A request says what answer it wants in its prompt, between tildes (``~kind=stream chunks=100 rate=50~``): every
gateway forwards prompts, none forwards unknown fields for sure. Each streamed chunk carries the time it was sent
at between at-signs (``@123456789@``, ``time.monotonic_ns`` of this machine), from which the client takes its delay.
"""

from __future__ import annotations

import http.client
import re
import time
from collections.abc import Mapping

import msgspec

CHAT_PATH = "/v1/chat/completions"
EVENTS_PATH = "/bench/events"
MODEL = "bench"
STAMP = re.compile(rb"@(\d+)@")
DONE = b"data: [DONE]\n\n"
_MARKER = re.compile(rb"~([a-z0-9_=. -]+)~")


class Cut(msgspec.Struct, frozen=True):
    """A request whose connection went away before its answer was complete, as the stand-in saw it."""

    id: str
    arrived_ns: int
    lost_ns: int
    sent_bytes: int


class Wanted(msgspec.Struct, frozen=True):
    """The answer a request asks for. ``rate`` is chunks per second; ``step`` is 1 where all streams send together."""

    kind: str = "call"  # call | stream | flood | hang
    id: str = ""
    chunks: int = 1
    rate: float = 50.0
    step: int = 0
    flood_bytes: int = 0

    def marker(self) -> str:
        """The words to put into the prompt."""
        return "~" + " ".join(f"{name}={getattr(self, name)}" for name in self.__struct_fields__) + "~"


def wanted(body: bytes) -> Wanted:
    """What ``body`` asks for; a plain short answer where it says nothing."""
    found = _MARKER.search(body)
    if found is None:
        return Wanted()
    pairs = (word.partition("=") for word in found[1].decode().split())
    return msgspec.convert({name: value for name, _, value in pairs}, Wanted, strict=False)


def chat_body(answer: Wanted, *, prompt_bytes: int = 120) -> bytes:
    """A chat request for ``answer`` with about ``prompt_bytes`` of prompt."""
    text = 'Summarise what the department\'s servers did last night, "in order".\nLine — two. ' * (
        prompt_bytes // 80 + 1
    )
    messages = [
        {"role": "system", "content": "You are a helpful assistant."},
        {"role": "user", "content": answer.marker() + text[:prompt_bytes]},
    ]
    stream = {"stream": True} if answer.kind in ("stream", "flood") else {}
    return msgspec.json.encode({"model": MODEL, "messages": messages, "max_tokens": 256, "temperature": 0.7, **stream})


def request_bytes(body: bytes, headers: Mapping[str, str], path: str = CHAT_PATH) -> bytes:
    """The whole POST request as one string of bytes."""
    fields = {
        "host": "127.0.0.1",
        "accept": "application/json",
        "content-type": "application/json",
        "user-agent": "loadtests",
        **headers,
        "content-length": str(len(body)),
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"POST {path} HTTP/1.1\r\n{head}\r\n".encode() + body


def read_cuts(port: int) -> list[Cut]:
    """The stand-in's cut requests since the last time it was asked. Raises OSError."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", EVENTS_PATH)
        return msgspec.json.decode(connection.getresponse().read(), type=list[Cut])
    finally:
        connection.close()


def await_cuts(port: int, ids: set[str], timeout_s: float) -> dict[str, Cut]:
    """Cuts of the requests ``ids``, waiting up to ``timeout_s`` for all; those never seen are absent."""
    seen: dict[str, Cut] = {}
    deadline_s = time.monotonic() + timeout_s
    while True:
        seen.update((cut.id, cut) for cut in read_cuts(port) if cut.id in ids)
        if len(seen) == len(ids) or time.monotonic() > deadline_s:
            return seen
        time.sleep(0.05)
