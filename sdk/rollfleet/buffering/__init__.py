"""Rows of frames in memory that processes share: what a shared replay buffer is made of."""
