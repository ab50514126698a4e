"""What a line says, and what it never says."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from gateway.domain import Outcome
from gateway.ports import CallRecord
from gateway.telemetry.logs import CallLog, JsonLines, Sinks, configure_logging
from gateway.telemetry.writer import LineWriter
from gateway.testing.records import call_record, refused_record


class KeptLines(LineWriter):
    """A writer that keeps lines instead of writing them."""

    def __init__(self) -> None:
        self.kept: list[bytes] = []

    def put(self, line: bytes) -> None:
        assert b"\n" not in line
        self.kept.append(line)

    def last(self) -> dict[str, Any]:
        line: dict[str, Any] = json.loads(self.kept[-1])
        return line


@pytest.fixture
def lines() -> KeptLines:
    return KeptLines()


@pytest.fixture
def logged(lines: KeptLines) -> Iterator[KeptLines]:
    """The process's logging as configured for the gateway, restored afterwards."""
    names = (None, "httpx", "httpcore", "asyncio", "uvicorn", "uvicorn.error", "uvicorn.asgi", "uvicorn.access")
    before = [(lg, lg.level, lg.handlers, lg.propagate, lg.disabled) for lg in map(logging.getLogger, names)]
    configure_logging("info", lines)
    yield lines
    logging.captureWarnings(False)
    for logger, level, handlers, propagate, disabled in before:
        logger.setLevel(level)
        logger.handlers, logger.propagate, logger.disabled = handlers, propagate, disabled


def test_an_ordinary_call(lines: KeptLines) -> None:
    CallLog(lines).write(call_record())
    assert lines.last() == {
        "at": "2023-11-14T22:13:20.250000Z",
        "level": "info",
        "event": "call",
        "request": "req-1",
        "team": "chat",
        "key": "alice",
        "model": "qwen",
        "endpoint": "chat",
        "class": "short",
        "replica": "dp0",
        "route": "least_inflight",
        "attempts": 1,
        "outcome": "ok",
        "status": 200,
        "finish": "stop",
        "stream": True,
        "completed": True,
        "prompt": 1000,
        "cached": 400,
        "completion": 50,
        "prompt_estimate": 900,
        "queue_ms": 20.0,
        "ttft_ms": 300.0,
        "tpot_ms": 12.0,
        "e2e_ms": 900.0,
        "overhead_ms": 0.3,
        "bytes": 4000,
    }


def test_what_is_absent_is_left_out(lines: KeptLines) -> None:
    CallLog(lines).write(
        refused_record(team="", key="", model="", endpoint=None, stream=False, overhead_s=0.0, request_bytes=0)
    )
    assert set(lines.last()) == {
        *("at", "level", "event", "request", "outcome", "status", "reason", "stream", "completed", "e2e_ms"),
    }


@pytest.mark.parametrize("outcome", Outcome)
def test_g5_every_ending_leaves_one_line(lines: KeptLines, outcome: Outcome) -> None:
    CallLog(lines).write(call_record(outcome=outcome))
    assert [json.loads(line)["outcome"] for line in lines.kept] == [outcome.value]


@pytest.mark.parametrize("text", ["x" * 100_000, 'a"b\\c\nd\re\x00f', "模型😀", "\ud800 lone", "\u2028"])
def test_what_clients_make_up_is_bounded_and_stays_one_line(lines: KeptLines, text: str) -> None:
    CallLog(lines).write(call_record(request_id=text, model=text, reason=text, finish_reason=text))
    assert len(lines.kept[-1]) < 5_000
    shown = text[:128].encode("utf-8", "replace").decode()
    assert lines.last()["model"] == lines.last()["request"] == shown


def test_sinks_hand_on_to_each() -> None:
    class Kept:
        def __init__(self) -> None:
            self.records: list[CallRecord] = []

        def write(self, record: CallRecord) -> None:
            self.records.append(record)

    first, second, record = Kept(), Kept(), call_record()
    Sinks(first, second).write(record)
    Sinks().write(record)
    assert first.records == second.records == [record]


def test_logging_comes_out_as_json(logged: KeptLines) -> None:
    logging.getLogger("gateway.proxy").warning("replica %s is down", "dp0", extra={"replica": "dp0", "tries": 2})
    line = logged.last()
    assert line.pop("at").endswith("Z")
    assert line == {
        "level": "warning",
        "logger": "gateway.proxy",
        "message": "replica dp0 is down",
        "replica": "dp0",
        "tries": 2,
    }


def test_an_exception_is_one_line_with_its_traceback(logged: KeptLines) -> None:
    try:
        raise RuntimeError("broken\nthing")
    except RuntimeError:
        logging.getLogger("gateway").exception("failed")
    line = logged.last()
    assert (line["level"], line["message"]) == ("error", "failed")
    assert line["traceback"].startswith("Traceback (most recent call last)")
    assert line["traceback"].endswith("RuntimeError: broken\nthing")


def test_lines_are_bounded(logged: KeptLines) -> None:
    try:
        raise RuntimeError("y" * 1_000_000)
    except RuntimeError:
        logging.getLogger("gateway").exception("x" * 1_000_000, extra={"more": "z" * 1_000_000})
    assert len(logged.kept[-1]) < 30_000


def test_levels(logged: KeptLines) -> None:
    logging.getLogger("gateway").debug("too quiet")
    logging.getLogger("httpx").info("HTTP Request: GET http://gpu1:8000/health")
    assert logged.kept == []
    with pytest.raises(ValueError):
        configure_logging("loudly", logged)


def test_uvicorn_is_included_but_for_its_access_log(logged: KeptLines) -> None:
    logging.getLogger("uvicorn.error").info("Started server process [%d]", 1, extra={"color_message": "\x1b[1m"})
    logging.getLogger("uvicorn.access").info('%s - "%s"', "192.0.2.1", "GET /?key=sk-canary")
    assert [json.loads(line)["message"] for line in logged.kept] == ["Started server process [1]"]
    assert "color_message" not in logged.last()


def test_warnings_are_logged(logged: KeptLines) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(False)
        logging.captureWarnings(True)
        warnings.warn("old thing", DeprecationWarning, stacklevel=1)
    assert "old thing" in logged.last()["message"]


def test_a_record_that_cannot_be_formatted_leaves_a_line(lines: KeptLines, capfd: pytest.CaptureFixture[str]) -> None:
    handler = JsonLines(lines)
    handler.handle(logging.makeLogRecord({"msg": "%d tokens", "args": ("many",)}))
    assert lines.last() == {"level": "error", "event": "bad_log_record", "why": "TypeError"}
    handler.handle(logging.makeLogRecord({"msg": "lone \ud800", "name": "gateway"}))
    assert lines.last()["message"] == "lone ?"
    assert capfd.readouterr().err == ""


def test_configuring_again_does_not_double_lines(logged: KeptLines) -> None:
    configure_logging("info", logged)
    logging.getLogger("gateway").info("once")
    assert len(logged.kept) == 1


def test_g2_a_line_has_no_room_for_secrets_or_prompts() -> None:
    """A record holds no text of a prompt or answer and no secret: none of its fields could carry one to a line."""
    known = set(CallRecord.__struct_fields__)
    text = {name for name, kind in CallRecord.__annotations__.items() if "str" in str(kind)}
    assert text == {"request_id", "team", "key", "model", "replica", "reason", "finish_reason"}
    assert not known & {"prompt", "messages", "answer", "body", "secret", "headers", "text"}
