"""The operator: it creates what each `CollectorJob` needs in the cluster and on NATS, and reports the job's status.

This package owns all access to the Kubernetes API. Each reconciliation reads the cluster (`cluster_reader`), decides
(`verdict`, `desired`, `plan`), acts (`apply`), then writes the status once and its events. `ui` shows it in a browser.
It knows the SDK only by `rollfleet_api` and `rollfleet_ui`.

It never imports `rollfleet`, torch, tensordict or gymnasium: the operator's image does not contain them.
"""
