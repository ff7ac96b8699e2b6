"""The drill: a toy API, a scripted agent and the proxy as real processes, killed at every point."""
