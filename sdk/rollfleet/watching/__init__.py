"""Who sees a job's batches beside its learner, evaluators and recorders; and what was recorded."""
