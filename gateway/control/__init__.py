"""What is no model call, as a FastAPI application: health, metrics, administration, models, one's own limits.

``app.create_control`` builds it from ports. It answers what the data path hands over, ``OPTIONS`` of every path too,
and speaks errors in the shape the data path's clients expect.
"""
