"""`python -m vjax`, the same as `vjax`."""

from vjax.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
