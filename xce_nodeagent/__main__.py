"""`python -m xce_nodeagent` is the program `xce-nodeagent`."""

import sys

from xce_nodeagent.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
