"""How policies are called, and the built-in ones: observations in, actions out."""
