"""One generation: from the engine's progress to bytes on a connection, faults included."""

from __future__ import annotations

from collections.abc import Callable

from gateway.domain import Usage
from gateway.sim.engine import Progress
from gateway.sim.faults import Fault, FaultKind, Manner
from gateway.sim.http import Reply
from gateway.sim.prepare import Prepared
from gateway.sim.shapes import Shape, data, encode

_EVENT_STREAM = "text/event-stream; charset=utf-8"
_CUTS = frozenset({FaultKind.CLOSE_AFTER, FaultKind.HANG_AFTER, FaultKind.ERROR_AFTER})


class Generation:
    """Writes one answer. ``stop`` aborts it in the engine; it is called when a fault ends it early."""

    def __init__(
        self,
        reply: Reply,
        prepared: Prepared,
        shape: Shape,
        *,
        manner: Manner,
        fault: Fault | None,
        stop: Callable[[], None],
    ) -> None:
        self._reply = reply
        self._prepared = prepared
        self._shape = shape
        self._manner = manner
        self._fault = fault if fault is not None and fault.kind in _CUTS else None
        self._stop = stop
        self._position = 0
        self._chunks = 0
        if prepared.ask.stream:  # as vLLM: the headers go out before the first token is computed
            reply.start(_EVENT_STREAM)

    def on_progress(self, progress: Progress) -> None:
        """Take the tokens of one step."""
        start, self._position = self._position, self._position + progress.tokens
        usage = self._usage(progress.cached_tokens)
        if self._prepared.ask.stream:
            if progress.first:
                self._write(self._shape.opening(usage))
            if self._cut():
                return
            self._write(self._shape.pieces(self._prepared.answer.cut(start, self._position)))
            self._chunks += 1
            if progress.finished and not self._cut():
                self._write(self._shape.closing(self._prepared.answer, usage))
                self._reply.end()
        elif progress.finished and not self._cut():
            self._reply.send(200, self._shape.whole(self._prepared.answer, usage))
        else:
            self._chunks += 1

    def _usage(self, cached: int) -> Usage:
        reasoning = min(self._position, self._prepared.answer.reasoning_tokens)
        return Usage(self._prepared.prompt_tokens, self._position, cached, reasoning)

    def _cut(self) -> bool:
        """Whether a fault ends the answer here."""
        fault = self._fault
        if fault is None or self._chunks < fault.chunks:
            return False
        self._stop()
        if fault.kind is FaultKind.CLOSE_AFTER:
            self._reply.abort()
        elif fault.kind is FaultKind.ERROR_AFTER:
            error = {"message": "EngineCore encountered an issue.", "type": "InternalServerError", "code": 500}
            if self._reply.started:
                self._write(data({"error": {**error, "param": None}}) + b"data: [DONE]\n\n")
                self._reply.end()
            else:
                self._reply.send(500, encode({"error": error}))
        return True

    def _write(self, frames: bytes) -> None:
        if self._manner.crlf:
            frames = frames.replace(b"\n", b"\r\n")
        if self._manner.bytewise:
            for at in range(len(frames)):
                self._reply.write(frames[at : at + 1])
        else:
            self._reply.write(frames)
