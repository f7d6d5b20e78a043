import sys

from gridcalc.cli import main

sys.exit(main(sys.argv[1:]))
