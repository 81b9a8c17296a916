"""What is behind the learner's iterator, above every transport.

`options` and `construction` turn a constructor's arguments into a job. `gathering` tells workers what to do and
collects their batches; `following` does so for ranks other than 0. `admission` lets each batch in once, on weights that
are new enough; `duplicates` finds repeats and gaps; `outcome` puts a batch together for the user. `broadcast` numbers
and sends versions of the weights.
"""
