"""`python -m saformer`, and so `torchrun -m saformer`."""

import sys

from saformer.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
