"""The page that shows jobs in a browser: one model and one server, for the operator and for this machine.

- `model` is what the API sends. `rows` and `spec_text` make it from a job.
- `job_record` is one job over time: its newest state, its `history` in bounds, with its `series` and `waits`, and its
  `edits`. `local_job` is the state of a run on one machine, by the rules of a cluster's jobs.
- `source` has the seams: who has jobs to show, and who may see them. `saved_runs` shows past runs.
- `server` answers over HTTP; `token_guard` admits browsers of this machine.
- `static` is the page itself: plain files, no build.

It must import only `rollfleet_api`, pydantic and PyYAML, and aiohttp in the modules about HTTP.
"""
