"""onceproxy: an HTTP forward proxy that makes an agent's external writes happen once."""

__version__ = "0.1.0"
