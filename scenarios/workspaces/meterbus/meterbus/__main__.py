import sys

from meterbus.cli import main

sys.exit(main())
