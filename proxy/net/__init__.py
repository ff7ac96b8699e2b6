"""The wire: how calls come in, how they go out, and what is refused on the way.

Nothing here decides whether a call may be sent; that is the engine's. This package keeps the
difference between "provably not sent" and "maybe sent", and one request on the wire per send.
"""
