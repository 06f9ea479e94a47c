"""`python -m adapter_probe`: the command line, if the script `adapter-probe` is not on the path."""

from __future__ import annotations

from .cli.main import main

if __name__ == "__main__":
    main()
