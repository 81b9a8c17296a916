"""A job observed from beside: evaluators and recorders receive every batch, and take none from the learner.

`observe` returns live batches, `record` writes them to disk in segments, `Recording` reads them back.
"""
