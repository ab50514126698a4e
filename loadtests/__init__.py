"""Load tests of the gateway: run from the project's root with ``python -m loadtests``; no part of the wheel."""
