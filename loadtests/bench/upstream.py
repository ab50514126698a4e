"""A stand-in for vLLM that is much faster than any proxy in front of it: ``python -m loadtests.bench.upstream``.

It serves one model on as many ports as asked (replicas of a pool), prints them as a JSON list once it listens,
and ends when its standard input does. What each request wants is in its prompt, see ``wire``.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import deque
from typing import cast

import httptools
import msgspec
import uvloop

from loadtests.bench.pacer import Pacer
from loadtests.bench.wire import CHAT_PATH, DONE, EVENTS_PATH, MODEL, Cut, Wanted, wanted

_SERVER = b"date: Thu, 01 Jan 2026 00:00:00 GMT\r\nserver: uvicorn\r\n"
_CONTEXT_TOKENS = 1_048_576
_FLOOD_BLOCK_BYTES = 65_536


def _event(choices: str, usage: str = "") -> bytes:
    head = '"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1767225600'
    return f'data: {{{head},"model":"{MODEL}","choices":[{choices}]{usage}}}\n\n'.encode()


def _chunk(delta: str, finish: str = "null") -> bytes:
    return _event(f'{{"index":0,"delta":{delta},"logprobs":null,"finish_reason":{finish}}}')


def _framed(piece: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(piece), piece)


def _answer(body: bytes, content_type: bytes = b"application/json", status: bytes = b"200 OK") -> bytes:
    head = b"HTTP/1.1 %b\r\n%bcontent-length: %d\r\ncontent-type: %b\r\n\r\n"
    return head % (status, _SERVER, len(body), content_type) + body


_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\n"
    + _SERVER
    + b"content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)
_ROLE = _framed(_chunk('{"role":"assistant","content":""}'))
_TOKEN_HEAD, _, _TOKEN_TAIL = _chunk('{"content":"@#@"}').partition(b"#")
_LAST = _framed(_chunk('{"content":""}', '"stop"'))
_USAGE = _framed(_event("", ',"usage":{"prompt_tokens":40,"total_tokens":140,"completion_tokens":100}'))
_END = _framed(DONE) + b"0\r\n\r\n"
_FILLER = _chunk('{"content":" token"}')
_FLOOD = _framed(_FILLER * (_FLOOD_BLOCK_BYTES // len(_FILLER)))
_CALL = _answer(
    b'{"id":"chatcmpl-0123456789abcdef","object":"chat.completion","created":1767225600,"model":"bench",'
    b'"choices":[{"index":0,"message":{"role":"assistant","content":"They served all requests in order.",'
    b'"tool_calls":[]},"logprobs":null,"finish_reason":"stop","stop_reason":null}],"usage":{"prompt_tokens":40,'
    b'"total_tokens":52,"completion_tokens":12,"prompt_tokens_details":null},"prompt_logprobs":null}'
)
_MODELS = _answer(
    b'{"object":"list","data":[{"id":"bench","object":"model","created":1767225600,"owned_by":"vllm","root":"bench","parent":null,'
    b'"max_model_len":%d}]}' % _CONTEXT_TOKENS
)
_NOT_FOUND = _answer(
    b'{"error":{"message":"Not Found","type":"NotFoundError","param":null,"code":404}}', status=b"404 Not Found"
)
_LABELS = f'{{engine="0",model_name="{MODEL}"}}'
_METRICS = _answer(
    f"""# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{_LABELS} 0.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{_LABELS} 0.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{_LABELS} 0.0
# TYPE vllm:prefix_cache_queries counter
vllm:prefix_cache_queries_total{_LABELS} 0.0
# TYPE vllm:prefix_cache_hits counter
vllm:prefix_cache_hits_total{_LABELS} 0.0
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{{block_size="16",engine="0",num_gpu_blocks="{_CONTEXT_TOKENS}"}} 1.0
""".encode(),
    b"text/plain; version=0.0.4; charset=utf-8",
)


class Server:
    """What the connections share: the pacer and the requests that were cut off (bounded, oldest forgotten)."""

    def __init__(self, pacer: Pacer) -> None:
        self.pacer = pacer
        self.cuts: deque[Cut] = deque(maxlen=4096)

    def take_cuts(self) -> bytes:
        """All cuts as JSON, and forget them."""
        answer = _answer(msgspec.json.encode(list(self.cuts)))
        self.cuts.clear()
        return answer


class Connection(asyncio.Protocol):
    """One keep-alive connection; requests come one after the other."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""
        self._body: list[bytes] = []
        self._wanted: Wanted | None = None  # the answer that is under way
        self._arrived_ns = self._due_ns = self._period_ns = self._left = self._sent_bytes = 0
        self._with_usage = self._paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See ``asyncio.Protocol``."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """See ``asyncio.Protocol``."""
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 (asyncio's signature)
        """Note an answer that was cut off."""
        if (answer := self._wanted) is not None:
            cut = Cut(answer.id, self._arrived_ns, time.monotonic_ns(), self._sent_bytes)
            self._wanted = None
            if cut.id:
                self._server.cuts.append(cut)

    def on_message_begin(self) -> None:
        """A request starts."""
        self._url = b""
        self._body.clear()

    def on_url(self, url: bytes) -> None:
        """Part of its target."""
        self._url += url

    def on_body(self, body: bytes) -> None:
        """Part of its body."""
        self._body.append(body)

    def on_message_complete(self) -> None:
        """Answer it, or start to."""
        match self._url.partition(b"?")[0].decode("ascii", "replace"):
            case path if path == CHAT_PATH:
                self._chat(b"".join(self._body))
            case "/health" | "/ping":
                self._transport.write(_answer(b""))
            case "/v1/models":
                self._transport.write(_MODELS)
            case "/metrics":
                self._transport.write(_METRICS)
            case path if path == EVENTS_PATH:
                self._transport.write(self._server.take_cuts())
            case _:
                self._transport.write(_NOT_FOUND)

    def _chat(self, body: bytes) -> None:
        if b"~kind=call " in body:  # the shortest way for the case that measures calls
            self._transport.write(_CALL)
            return
        self._wanted = answer = wanted(body)
        self._arrived_ns, self._sent_bytes = time.monotonic_ns(), 0
        match answer.kind:
            case "stream":
                self._start_stream(answer, b'"include_usage":true' in body.replace(b" ", b""))
            case "flood":
                self._left = answer.flood_bytes
                self._transport.write(_STREAM_HEAD + _ROLE)
                self._flood()
            case "hang":
                pass
            case _:
                self._wanted = None
                self._transport.write(_CALL)

    def _start_stream(self, answer: Wanted, with_usage: bool) -> None:
        self._left, self._with_usage = answer.chunks, with_usage
        self._period_ns = int(1e9 / answer.rate)
        start_ns = self._arrived_ns
        if answer.step:  # an engine's step: every stream's chunk at the same moment
            start_ns -= start_ns % self._period_ns
        self._due_ns = start_ns + self._period_ns
        self._transport.write(_STREAM_HEAD + _ROLE)
        self._server.pacer.at(self._due_ns, self._send_chunk)

    def _send_chunk(self) -> None:
        if self._wanted is None:
            return
        if not self._paused:  # a reader that stalls loses chunks here; the client counts and reports them
            piece = b"%b%d%b" % (_TOKEN_HEAD, time.monotonic_ns(), _TOKEN_TAIL)
            self._transport.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        self._left -= 1
        self._due_ns += self._period_ns
        if self._left:
            self._server.pacer.at(self._due_ns, self._send_chunk)
            return
        self._wanted = None
        self._transport.write(_LAST + (_USAGE if self._with_usage else b"") + _END)

    def _flood(self) -> None:
        while self._left > 0 and not self._paused and not self._transport.is_closing():
            self._transport.write(_FLOOD)
            self._left -= len(_FLOOD)
            self._sent_bytes += len(_FLOOD)
        if self._left <= 0:
            self._wanted = None
            self._transport.write(_LAST + _END)

    def pause_writing(self) -> None:
        """The reader is slower than we are."""
        self._paused = True

    def resume_writing(self) -> None:
        """It caught up."""
        self._paused = False
        if self._wanted is not None and self._wanted.kind == "flood":
            self._flood()


async def _serve(ports: int) -> None:
    loop = asyncio.get_running_loop()
    server = Server(Pacer(loop))
    listeners = [
        await loop.create_server(lambda: Connection(server), "127.0.0.1", 0, backlog=4096) for _ in range(ports)
    ]
    print(msgspec.json.encode([listener.sockets[0].getsockname()[1] for listener in listeners]).decode(), flush=True)
    ended = asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), ended.set)
    await ended.wait()


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1])))
