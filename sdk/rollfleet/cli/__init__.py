"""The command line: each subcommand of `rollfleet` and `kubectl rollfleet`, and the programs that they start.

`main` declares the commands. `local` runs a job on this machine. `worker_program`, `record_program` and
`default_learner` are programs of their own; `stop_signal` ends them in order. `cluster_commands` shows
`rollfleet.Jobs`.
No other package may import the command line.
"""
