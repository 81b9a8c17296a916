"""The operator: it creates what each `CollectorJob` needs in the cluster and on NATS, and reports the job's status.

This package owns all access to the Kubernetes API. `program` is the running operator: the pod that leads (`leadership`)
watches objects (`watch`), keeps them (`cache`), and reconciles jobs from a queue (`work_queue`). Each
reconciliation (`reconcile`) reads the cluster (`cluster_reader`), decides (`rollfleet_api.state`, `desired`, `plan`),
acts (`apply` in the cluster, `nats` through the seam `nats_port`), then writes the status once and its `events`.
`metrics` and `ui` show it. The package knows the SDK only by `rollfleet_api` and `rollfleet_ui`.

It never imports `rollfleet`, torch, tensordict or gymnasium: the operator's image does not contain them.
"""
