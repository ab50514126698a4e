"""What the gateway tells about itself: the metrics page, and JSON lines on stderr.

``metrics.Metrics`` and ``logs.CallLog`` take the record of each call (``ports.RecordSink``); ``logs.Sinks`` joins them.
``table`` names every metric, ``series`` counts, ``writer`` keeps a blocked stderr away from the event loop.
"""
