"""Recordings of a job: a recorder receives every batch, and takes none from the learner.

`record` writes batches to disk in segments, `Recording` reads them back.
"""
