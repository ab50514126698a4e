"""One OpenAI-compatible endpoint in front of a department's own vLLM servers.

Words (one word a thing, here and everywhere)
    Gateway   the running service            Worker    one uvicorn process of it
    Replica   one vLLM server (one URL)      Pool      the replicas that serve one model
    Team      who is charged and limited     Key       a secret of a team's member
    Call      one parsed client request      Class     ``short`` or ``long``, by prefill work
    Estimate  tokens expected                Usage     tokens spent
    Permit    one in-flight slot on a replica, released exactly once
    View      immutable snapshot a policy decides on
    Exchange  one call's trip from receive to settle
    Outcome   how an exchange ended (closed set; a metric label)

The path of a request
    proxy.front (bytes) -> proxy.datapath (key, route) -> proxy.exchange:
    parse -> estimate -> gate (queue, caps, routing: one decision) -> upstream -> relay -> record
    Everything that is no model call goes to the FastAPI application in ``control``.
"""

__version__ = "0.1.0"
