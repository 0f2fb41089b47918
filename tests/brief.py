"""Most tests need an outlook, not a good one. `python -m tests.brief train ...` is the command line
with outlooks that are fitted for a moment."""

import sys

from saformer.cli.main import main
from saformer.rules import fitting

WHOLE, BRIEF = fitting.UPDATES, (5, 5)

if __name__ == "__main__":
    fitting.UPDATES = BRIEF
    sys.exit(main())
