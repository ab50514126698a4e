"""Bytes of an answer -> tokens, gaps and usage. No I/O: times come in with the bytes."""

from __future__ import annotations

from array import array
from typing import Any

import msgspec

_DONE = b"[DONE]"
_BODY_BYTES_MAX = 64_000_000


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class Usage(msgspec.Struct):
    """An answer's own count of its tokens."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Details | None = None

    @property
    def cached_tokens(self) -> int | None:
        """Prompt tokens found in the prefix cache, where the server tells."""
        return self.prompt_tokens_details.cached_tokens if self.prompt_tokens_details else None


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[Any] | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    message: _Delta | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: Usage | None = None
    error: Any = None


_CHUNKS = msgspec.json.Decoder(_Chunk)


class Answer:
    """One answer as it comes in. ``fault`` says what is wrong with it; a stream is ``whole`` with its ``[DONE]``.

    ``first_s`` and ``gaps`` are of chunks with tokens; the role chunk, comments and the usage chunk are none.
    """

    def __init__(self, *, stream: bool) -> None:
        self._stream = stream
        self._tail = b""
        self._texts: list[str] = []
        self._last_s = 0.0
        self.first_s: float | None = None
        self.gaps: array[float] = array("d")
        self.chunks = 0
        self.usage: Usage | None = None
        self.whole = False
        self.fault: str | None = None

    @property
    def text(self) -> str:
        """What was said so far."""
        return "".join(self._texts)

    def feed(self, data: bytes, now_s: float) -> None:
        """Take body bytes of a 200 that arrived at ``now_s``."""
        if self._tail:
            data = self._tail + data
        if len(data) > _BODY_BYTES_MAX:
            self.fault = "answer too large"
            self._tail = b""
        elif not self._stream:
            self._tail = data
        else:
            if b"\r" in data:
                data = data.replace(b"\r\n", b"\n")
            *events, self._tail = data.split(b"\n\n")
            for event in events:
                self._event(event, now_s)

    def end(self) -> None:
        """The body is complete."""
        if not self._stream:
            self._take(self._tail, None)
            self.whole = self.fault is None
        elif not self.whole and self.fault is None:
            self.fault = "stream without [DONE]"

    def _event(self, event: bytes, now_s: float) -> None:
        for line in event.split(b"\n"):
            if line.startswith(b"data:"):
                payload = line[5:].lstrip()
                if payload == _DONE:
                    self.whole = self.fault is None
                else:
                    self._take(payload, now_s)

    def _take(self, payload: bytes, now_s: float | None) -> None:
        try:
            chunk = _CHUNKS.decode(payload)
        except msgspec.DecodeError:
            self.fault = "answer is no chat completion"
            return
        if chunk.error is not None:
            self.fault = f"error in the answer: {error_word(payload)}"
        if chunk.usage is not None:
            self.usage = chunk.usage
        said = False
        for choice in chunk.choices:
            delta = choice.delta or choice.message
            if delta is None:
                continue
            if delta.content:
                self._texts.append(delta.content)
                said = True
            said = said or bool(delta.reasoning or delta.reasoning_content or delta.tool_calls)
        if said:
            self.chunks += 1
            if now_s is not None:
                self._token(now_s)

    def _token(self, now_s: float) -> None:
        if self.first_s is None:
            self.first_s = now_s
        else:
            self.gaps.append(now_s - self._last_s)
        self._last_s = now_s


class _Error(msgspec.Struct):
    code: Any = None
    type: Any = None


class _ErrorBody(msgspec.Struct):
    error: _Error


def error_word(body: bytes) -> str:
    """The code (or type) of an OpenAI-shaped error; empty if it is none."""
    try:
        error = msgspec.json.decode(body, type=_ErrorBody).error
    except msgspec.DecodeError:
        return ""
    word = error.code if isinstance(error.code, str) else error.type
    return str(word)[:60] if isinstance(word, str) else ""
