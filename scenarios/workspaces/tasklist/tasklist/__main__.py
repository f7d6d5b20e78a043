import sys

from tasklist.cli import main

sys.exit(main(sys.argv[1:]))
