"""Bytes of messages: how fragments and weights travel, independent of the transport.

`codec` encodes tensors behind a typed, checked header. `fragment_message` encodes a fragment with it; `frame_stacks`
sends each stacked image once. `chunks` cuts messages to the size that a server accepts, and reassembles them. Received
bytes are hostile until they are checked. Nothing here opens a connection.
"""
