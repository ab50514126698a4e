"""Other gateways beside ours, over the same simulated fleet and the same traffic.

environment       a virtual environment for each, made when first needed
peer              what a peer is: a ``bench`` target that can be installed and met by the teams of a workload
nginx … ours      one small class each
fleet             the simulated servers of a run, unlike ones too
race              every peer under every seed, in turn    -> Trials
figures, report   Trials -> one table, Markdown, JSON
"""
