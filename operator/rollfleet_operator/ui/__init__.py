"""The page of an installation, served by the operator that leads: `rollfleet_ui`'s server over the operator's memory.

- `shown_jobs` has the page's data of all jobs, from their reconciliations.
- `guard` asks the API server who a viewer is, and what the viewer may see. `logs` reads logs with the viewer's token.

It reads the operator's state and never changes a job. Without it nothing here is recorded.
"""
