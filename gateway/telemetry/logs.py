"""JSON lines: one for each call, and the standard library's logging in the same form.

A line never carries a prompt, an answer or a key's secret. What the client made up (request id, model name) is cut to a
bounded length; control characters end up escaped, so a line stays one line.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime

import msgspec

from gateway.domain import CallClass, Endpoint, Outcome, RouteReason
from gateway.ports import CallRecord, RecordSink
from gateway.telemetry.writer import LineWriter

CLIENT_TEXT_MAX = 128
MESSAGE_MAX = 4_000
TRACEBACK_MAX = 16_000

# httpx logs each probe at INFO; uvicorn's own loggers come with handlers that would print plain text.
_QUIET = ("httpx", "httpcore", "asyncio")
_UVICORN = ("uvicorn", "uvicorn.error", "uvicorn.asgi", "uvicorn.access")
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}


class CallLine(msgspec.Struct, omit_defaults=True, kw_only=True):
    """A call as logged: times in milliseconds, tokens by kind; what is absent or nothing is left out."""

    at: datetime
    level: str
    event: str
    request: str
    team: str = ""
    key: str = ""
    model: str = ""
    endpoint: Endpoint | None = None
    cls: CallClass | None = msgspec.field(name="class", default=None)
    replica: str = ""
    route: RouteReason | None = None
    attempts: int = 0
    outcome: Outcome
    status: int
    reason: str = ""
    finish: str = ""
    stream: bool
    completed: bool
    estimated: bool = False
    prompt: int = 0
    cached: int = 0
    completion: int = 0
    reasoning: int = 0
    prompt_estimate: int = 0
    queue_ms: float | None = None
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2e_ms: float
    overhead_ms: float | None = None
    bytes: int = 0


# Nobody's fault, or the client's: an ordinary call. The rest is what an administrator wants to know of.
_ORDINARY = frozenset({Outcome.OK, Outcome.REFUSED, Outcome.CLIENT_GONE, Outcome.UPSTREAM_REJECTED})


class CallLog:
    """A ``RecordSink`` that logs one line for each call: at ``info``, or at ``warning`` where something went wrong.

    Lines below ``level`` (a name such as ``"info"``) are left out.
    """

    def __init__(self, writer: LineWriter, level: str = "info") -> None:
        self._writer = writer
        self._level = logging.getLevelNamesMapping()[level.upper()]
        self._encoder = msgspec.json.Encoder()

    def write(self, record: CallRecord) -> None:
        """Log ``record``."""
        level, word = (logging.INFO, "info") if record.outcome in _ORDINARY else (logging.WARNING, "warning")
        if level >= self._level:
            self._writer.put(self._encoder.encode(_call_line(record, word)))


class Sinks:
    """One ``RecordSink`` that hands each record to several."""

    def __init__(self, *sinks: RecordSink) -> None:
        self._sinks = sinks

    def write(self, record: CallRecord) -> None:
        """Hand ``record`` to every sink, in order."""
        for sink in self._sinks:
            sink.write(record)


class JsonFormatter(logging.Formatter):
    """Formats a log record as one JSON object; values given as ``extra`` become fields of their own."""

    def format(self, record: logging.LogRecord) -> str:
        """One line without its newline: at, level, logger, message, the extras, and a traceback if there is one."""
        line: dict[str, object] = {
            "at": datetime.fromtimestamp(record.created, UTC),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": clean(record.getMessage(), MESSAGE_MAX),
        }
        for name, value in vars(record).items():
            if name not in _STANDARD:
                line[name] = value if isinstance(value, bool | int | float | None) else clean(str(value), MESSAGE_MAX)
        if record.exc_info:
            line["traceback"] = clean(self.formatException(record.exc_info)[-TRACEBACK_MAX:], TRACEBACK_MAX)
        return msgspec.json.encode(line).decode()


class JsonLines(logging.Handler):
    """A logging handler whose lines go through a ``LineWriter``."""

    def __init__(self, writer: LineWriter) -> None:
        super().__init__()
        self._writer = writer
        self.setFormatter(JsonFormatter())

    def emit(self, record: logging.LogRecord) -> None:
        """Format and hand over; a record that cannot be formatted leaves a line that says so."""
        try:
            line = self.format(record)
        except Exception as error:  # noqa: BLE001 - logging must not raise, and its default prints to a blocking stderr
            line = msgspec.json.encode(
                {"level": "error", "event": "bad_log_record", "why": type(error).__name__}
            ).decode()
        self._writer.put(line.encode())


def configure_logging(level: str, writer: LineWriter) -> None:
    """Send everything logged in this process through ``writer``, from ``level`` (a name such as ``"info"``) up.

    uvicorn's loggers are included (start it with ``log_config=None``); its access log is off, for the gateway logs
    calls itself. Raises ``ValueError`` for an unknown level. May be called again.
    """
    root = logging.getLogger()
    root.setLevel(level.upper())
    root.handlers = [JsonLines(writer)]
    for name in _QUIET:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
    for name in _UVICORN:
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [], True
    logging.getLogger("uvicorn.access").disabled = True
    logging.captureWarnings(True)


def clean(text: str, length_max: int) -> str:
    """``text`` cut to ``length_max`` characters, with what UTF-8 cannot carry (lone surrogates) replaced by ``?``."""
    text = text if len(text) <= length_max else text[:length_max]
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def _call_line(record: CallRecord, level: str) -> CallLine:
    usage = record.usage
    return CallLine(
        at=datetime.fromtimestamp(record.at, UTC),
        level=level,
        event="call",
        request=clean(record.request_id, CLIENT_TEXT_MAX),
        team=record.team,
        key=record.key,
        model=clean(record.model, CLIENT_TEXT_MAX),
        endpoint=record.endpoint,
        cls=record.call_class,
        replica=record.replica,
        route=record.route,
        attempts=record.attempts,
        outcome=record.outcome,
        status=record.status,
        reason=clean(record.reason, CLIENT_TEXT_MAX),
        finish=clean(record.finish_reason, CLIENT_TEXT_MAX),
        stream=record.stream,
        completed=record.completed,
        estimated=record.estimated,
        prompt=usage.prompt,
        cached=usage.cached,
        completion=usage.completion,
        reasoning=usage.reasoning,
        prompt_estimate=record.estimated_prompt,
        queue_ms=_ms(record.queue_s) or None,
        ttft_ms=None if record.ttft_s is None else _ms(record.ttft_s),
        tpot_ms=None if record.tpot_s is None else _ms(record.tpot_s),
        e2e_ms=_ms(record.e2e_s),
        overhead_ms=round(record.overhead_s * 1_000, 3) or None,
        bytes=record.request_bytes,
    )


def _ms(seconds: float) -> float:
    return round(seconds * 1_000, 1)
