"""What the `rollfleet` command does, on this machine and, by kubectl, on a cluster."""
