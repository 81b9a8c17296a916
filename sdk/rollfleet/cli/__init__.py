"""The command line: each subcommand of `rollfleet` and `kubectl rollfleet`, and the programs that they start.

`main` and `cluster_commands` declare the commands; most have a module of their name with the work. `local` runs a job
on this machine as `run_processes`, and `live_run` shows it on the page. `worker_program` and `default_learner` are
programs of their own. `stop_signal` ends commands in order. `error_lines` reports errors. No other package may import
the command line.
"""
