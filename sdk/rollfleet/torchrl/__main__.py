"""`python -m rollfleet.torchrl program.py`: see `rollfleet.torchrl.program`."""

from rollfleet.torchrl.program import main

if __name__ == "__main__":
    main()
