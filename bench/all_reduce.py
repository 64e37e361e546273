"""Times all_reduce: ``mpirun -n 4 python bench/all_reduce.py -b 8 -e 64M -f 2``."""

import sys

from topoccl.bench.runner import main

if __name__ == "__main__":
    sys.exit(main("all_reduce"))
