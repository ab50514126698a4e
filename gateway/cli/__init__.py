"""The ``gateway`` command: one file a noun."""
