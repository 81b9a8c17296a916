"""Free ports of this machine."""

import socket


def free_ports(count: int) -> list[int]:
    """Return different free ports: all are open until the last one is chosen."""
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports: list[int] = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports
