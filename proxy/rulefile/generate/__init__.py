"""Rule files from what vendors publish about their APIs for machines.

A model tells which member of a request the API goes by when the request comes twice, where it
stands and what it may hold. That is enough to name operations and to keep their tokens; what a
model does not say (mostly how long a token is known) stays unstated. The same model gives the same
text.
"""

from proxy.rulefile.generate.aws import from_botocore
from proxy.rulefile.generate.google import from_discovery
from proxy.rulefile.generate.text import CannotGenerate, Pack, Selection

__all__ = ["CannotGenerate", "Pack", "Selection", "from_botocore", "from_discovery"]
