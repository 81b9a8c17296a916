"""Weights as bytes: the tensors of one or several models, laid out in one contiguous buffer.

`layout` copies a policy's tensors into the buffer of a version, and back. `models` finds the models of a policy by
name. A scheme (`rollfleet.schemes`) selects the tensors to send.
"""
