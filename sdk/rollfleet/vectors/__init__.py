"""Many environments as one, in Gymnasium's terms: one after the other, in processes, by EnvPool; and their spaces."""
