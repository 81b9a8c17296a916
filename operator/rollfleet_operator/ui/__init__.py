"""The page of an installation, served by the operator that leads: `rollfleet_ui`'s server over the operator's memory.

- `fleet` is what the page shows: rows, histories and timelines of jobs, from reconciliations. `rows` makes the rows.
- `keeper` saves it on NATS, and restores it after a restart.
- `guard` asks the API server who a viewer is, and what the viewer may see. `logs` reads logs with the viewer's token.
- `page` is the port.

It reads the operator's state and never changes a job. Without it nothing here is recorded.
"""
