"""A job on NATS: connections, credentials, streams, who is there."""
