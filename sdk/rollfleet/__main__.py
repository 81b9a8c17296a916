"""`python -m rollfleet` is the same as `rollfleet`."""

from rollfleet.cli.main import main

if __name__ == "__main__":
    main()
