"""The command line: each subcommand of `rollfleet` and `kubectl rollfleet`, and the programs that they start.

`main` declares the commands. `local` runs a job on this machine; `worker_program` is a worker's process. The commands
about a cluster run kubectl. Nothing else in the package may import the command line.
"""
