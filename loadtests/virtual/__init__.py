"""Runs a workload in virtual time: no sockets, no HTTP, an hour in seconds, the same result for the same seed.

The workload, the engines (``gateway.sim.machine``) and everything that decides (the gateway's own model, gate, pool,
routing, admission, token estimator, retry budget and breaker) are those of a run over sockets; only what carries
bytes is left out.

server    one simulated vLLM on the loop's time
trip      one ask's way through the gateway: the deciding parts of ``proxy.exchange`` in the same order
drive     users and arrivals, and a ``Call`` for everything they ask
run       all of it together: a ``report.result.Result`` like that of a run over sockets
settings  a model as the gateway understands its settings file, with some of them changed
sweep     a grid of settings, seed by seed; ``advice`` what it says; ``sweep_page`` how it looks
command   the commands
"""
