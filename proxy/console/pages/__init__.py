"""One file per page: what it asks, what it does, which template shows it."""
