"""Times a ring of messages, from every rank to the next: ``mpirun -n 4 python bench/sendrecv.py -b 8 -e 64M -f 2``."""

import sys

from topoccl.bench.runner import main

if __name__ == "__main__":
    sys.exit(main("sendrecv"))
