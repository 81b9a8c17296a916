"""A nats-server over TLS."""

import trustme
from tests.job_server import Server


def encrypt(server: Server) -> trustme.CA:
    """Start the server again over TLS, with a certificate of a new authority, which is returned."""
    authority, certificate, key = trustme.CA(), server.folder / "tls.crt", server.folder / "tls.key"
    issued = authority.issue_cert("127.0.0.1")
    issued.cert_chain_pems[0].write_to_path(certificate)
    issued.private_key_pem.write_to_path(key)
    server.restart(tls={"cert_file": str(certificate), "key_file": str(key)})
    return authority
