"""Bytes of messages: how fragments and weights travel, whatever carries them.

`codec` encodes tensors behind a typed, checked header; `fragment_message` uses it for a fragment, `frame_stacks` sends
each stacked image once. `batch_chunks` and `weight_chunks` cut messages to the size that a server takes, and put them
together. Bytes that arrive are hostile until they are checked. Nothing here opens a connection.
"""
