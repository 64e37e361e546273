"""Ways to move bytes between ranks: memory (threads of one process), MPI and Gloo point-to-point."""
