"""The parts of the learner's iterator, on any transport.

`iterator` is the loop that users run. `keywords`, `job_keywords`, `options` and `construction` make a job from the
arguments of `rollfleet.Collector`. `directing` sends control to the workers. `gathering` collects their batches.
`admission` admits each batch once, and only if its weights are new enough or, in mode Sync, if its round is open;
`duplicates` finds repeats and gaps. `broadcast` numbers and sends versions of the weights. `next_batch` does all of
this for one iteration, and makes the value that it yields; `public_calls` encloses all calls. It must not import
`rollfleet.collector` or `rollfleet.connection`.
"""
