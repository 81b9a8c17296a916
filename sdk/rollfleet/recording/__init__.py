"""A job seen from beside: evaluators and recorders get every batch and take none from the learner.

`observe` gives batches live, `record` writes them to disk in segments, `Recording` reads them back.
"""
