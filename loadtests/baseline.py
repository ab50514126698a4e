"""The naive way to put one endpoint in front of vLLM: a FastAPI route that forwards with httpx.

The benchmark measures it beside the gateway (``python -m loadtests.baseline --port P --upstream URL``). It is given
what it needs to work at all under load: no limit on connections, no timeout.
"""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import Response, StreamingResponse
from starlette.background import BackgroundTask

_HOP_BY_HOP = {"host", "connection", "content-length", "transfer-encoding", "keep-alive"}


def create_careless_app(upstream_url: str) -> FastAPI:
    """The same as many examples have it: a client for each call, and the whole answer before any of it."""
    app = FastAPI()

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        headers = [(name, value) for name, value in request.headers.items() if name not in _HOP_BY_HOP]
        async with httpx.AsyncClient(base_url=upstream_url, timeout=None) as client:
            answer = await client.post(request.url.path, headers=headers, content=await request.body())
        kept = {name: value for name, value in answer.headers.items() if name not in _HOP_BY_HOP}
        return Response(answer.content, answer.status_code, kept)

    return app


def create_app(upstream_url: str) -> FastAPI:
    """An application that forwards chat calls to ``upstream_url``."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    client = httpx.AsyncClient(base_url=upstream_url, timeout=None, limits=limits, trust_env=False)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with client:
            yield

    app = FastAPI(lifespan=lifespan)

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> StreamingResponse:
        headers = [(name, value) for name, value in request.headers.items() if name not in _HOP_BY_HOP]
        forwarded = client.build_request("POST", request.url.path, headers=headers, content=await request.body())
        answer = await client.send(forwarded, stream=True)
        return StreamingResponse(
            answer.aiter_raw(),
            status_code=answer.status_code,
            headers={name: value for name, value in answer.headers.items() if name not in _HOP_BY_HOP},
            background=BackgroundTask(answer.aclose),
        )

    return app


def main() -> None:
    """Serve until ended."""
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("--port", type=int, required=True)
    arguments.add_argument("--upstream", required=True)
    arguments.add_argument("--client-per-call", action="store_true")
    given = arguments.parse_args()
    create = create_careless_app if given.client_per_call else create_app
    uvicorn.run(create(given.upstream), host="127.0.0.1", port=given.port, log_level="warning", access_log=False)


if __name__ == "__main__":
    main()
