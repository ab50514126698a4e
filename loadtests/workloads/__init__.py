"""Traffic as values: pure and seeded, so that sockets and virtual time are put under exactly the same load.

    prompt    segments, prompts, their text and their block hashes
    ask       one request, what came of it, and when the next is due: the words between a workload and what drives it
    mix       who is there (chat users, agents, documents, a batch job): the scenarios and their settings
    users     people and programs that wait for their answer before they ask again (closed loop)
    arrivals  requests that come whether or not the last was answered (open loop)
    trace     recorded arrivals, and ``convert`` for public traces

A driver asks every user for its first ``Due``, sends the ask at that time, tells the user how it ended and gets the
next; it sends every arrival at its time. All times are seconds of the workload's own time since its start.
"""
