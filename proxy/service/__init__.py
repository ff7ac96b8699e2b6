"""What people and programs may ask and do: one place for API, CLI and console, without HTTP or a
terminal. One file per resource.
"""
