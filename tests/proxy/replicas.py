"""What replicas say: pieces of answers, and scripts that send them."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.testing.network import PeerRequest, Script

OK_BODY = (
    b'{"id":"x","choices":[{"message":{"content":"Hi"},"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":9,"completion_tokens":1}}'
)


def whole(status: int = 200, body: bytes = OK_BODY, extra: bytes = b"") -> bytes:
    """A response with a known length."""
    head = b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\n%bcontent-length: %d\r\n\r\n"
    return head % (status, extra, len(body)) + body


STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
STREAM_END = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(text: str | None = "word", **members: Any) -> bytes:
    """One chat chunk; ``text`` ``None`` is the role chunk."""
    delta = {"role": "assistant", "content": ""} if text is None else {"content": text}
    return b"data: " + msgspec.json.encode({"id": "x", "choices": [{"index": 0, "delta": delta}]} | members) + b"\n\n"


def usage_event(prompt: int = 9, completion: int = 3) -> bytes:
    usage = {"prompt_tokens": prompt, "completion_tokens": completion}
    return b"data: " + msgspec.json.encode({"id": "x", "choices": [], "usage": usage}) + b"\n\n"


DONE = b"data: [DONE]\n\n"


async def answer_ok(peer: Any) -> None:
    """Answer each request at once."""
    while True:
        await peer.request()
        peer.send(whole())


def streams(tokens: int = 3, gap_s: float = 0.1, first_s: float = 0.1) -> Script:
    """A replica that streams ``tokens`` words and its usage."""

    async def script(peer: Any) -> None:
        while True:
            await peer.request()
            await peer.sleep(first_s)
            peer.send(STREAM_HEAD, chunk(event(None)))
            for _ in range(tokens):
                await peer.sleep(gap_s)
                peer.send(chunk(event()))
            peer.send(chunk(usage_event(9, tokens)), chunk(DONE), STREAM_END)

    return script


class Seen:
    """Answers with what it is given and keeps the requests."""

    def __init__(self, *answer: bytes, delay_s: float = 0.0) -> None:
        self.requests: list[PeerRequest] = []
        self.answer = answer or (whole(),)
        self.delay_s = delay_s

    async def __call__(self, peer: Any) -> None:
        while True:
            self.requests.append(await peer.request())
            await peer.sleep(self.delay_s)
            peer.send(*self.answer)

    @property
    def ids(self) -> list[bytes]:
        return [request.headers[b"x-request-id"] for request in self.requests]


async def hangs_up(peer: Any) -> None:
    await peer.request()
    peer.close()
