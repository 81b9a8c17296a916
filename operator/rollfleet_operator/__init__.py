"""The operator: it makes a cluster hold what a `CollectorJob` asks for, and writes down what it sees.

This package owns everything that speaks to the Kubernetes API: reading what is there, computing what should be,
applying it, and the job's status and events. It knows the SDK only by what `rollfleet_api` says of it.

It never imports `rollfleet`, and never torch, tensordict or gymnasium: the operator's image has none of them.
"""
