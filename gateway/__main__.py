"""``python -m gateway``: the same commands as ``gateway``."""

from gateway.cli import main

if __name__ == "__main__":
    main()
