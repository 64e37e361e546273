"""Times reduce_scatter: ``mpirun -n 4 python bench/reduce_scatter.py -b 8 -e 64M -f 2``."""

import sys

from topoccl.bench.runner import main

if __name__ == "__main__":
    sys.exit(main("reduce_scatter"))
