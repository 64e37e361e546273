"""From a schedule to bytes moved: geometry, wiring over shared memory, lowering to a program, and running it."""
