"""Jobs on a Kubernetes cluster, from Python, by the official `kubernetes` client.

- `api` makes the requests, `refusals` translates errors.
- `jobs` is `rollfleet.Jobs`. `description` explains a job, by the views and the diagnosis of `rollfleet_api`.
- `settings` is `rollfleet.Cluster`. `sources` collects the code that a job needs; `submission` is the job of a
  collector.
- `kept_files` is the volume of a job's learner.
- `job_address` and `tunnel` are the way to a job's NATS from outside of the cluster.

This package must not import the collector or the command line. `kubernetes` is imported at the first request, not with
this package.
"""
