"""The pure part: what a call is, what to do about it, and what came of it.

Nothing in here waits, reads a clock, opens a file or draws a random number; time is an argument.
"""
