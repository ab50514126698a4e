"""The load client's process: ``python -m loadtests.bench.client`` reads one Job (JSON), does it, prints its Result."""

from __future__ import annotations

import gc
import sys

import msgspec
import uvloop

from loadtests.bench import jobs
from loadtests.bench.jobs import Job, Result


async def measure(job: Job) -> Result:
    """Do ``job``. A target that does not listen is a failed call like any other."""
    try:
        match job.kind:
            case "calls":
                return await jobs.calls(job)
            case "streams":
                return await jobs.streams(job)
            case "memory":
                return await jobs.memory(job)
            case "stall":
                return await jobs.stall(job)
            case "abort":
                return await jobs.abort(job)
            case _:
                raise ValueError(f"no such job: {job.kind}")
    except OSError as error:
        return Result({}, {f"{type(error).__name__}: {error.strerror}": 1})


if __name__ == "__main__":
    gc.disable()  # a collection would show as a delay
    found = uvloop.run(measure(msgspec.json.decode(sys.stdin.buffer.read(), type=Job)))
    sys.stdout.write(msgspec.json.encode(found).decode())
