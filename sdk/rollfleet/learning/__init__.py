"""What a learner's iterator is made of: who collects, what is gathered, what becomes of it."""
