"""A package, so that one of the same name in the environment does not take its place."""
