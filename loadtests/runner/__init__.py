"""Runs a workload against an OpenAI-compatible URL over sockets, and measures.

answer   bytes of an answer -> tokens, gaps, usage: no I/O
client   connections, one process, as cheap as they can be
drive    users and arrivals of a workload as tasks
engines  what the replicas say of themselves: counters, samples
verify   the client's counts against the engines'
fleet    simulators and the gateway as processes; settings writes the gateway's file
run      all of it together; live shows it, command is the command
"""
