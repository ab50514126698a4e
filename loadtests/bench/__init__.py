"""What the data path costs: CPU, delay and memory of a proxy, measured beside nginx and a naive route.

run        rounds: for each case, each target in turn   -> Measurement
targets    what can be measured: one small class each
cases      what is measured, and the goals
jobs       one measurement, inside the load client's own process
client     that process: a Job in, a Result out
upstream   the stand-in for vLLM, a process too
measure    CPU and memory of a process group, from /proc
report     Measurements -> table, Markdown, JSON
"""
