"""What the benchmark scripts share: options, operations, data and its reference, timing, and how results are shown.

Nothing here imports NumPy or torch when it is imported, save :mod:`data`, :mod:`reference` and :mod:`backends`, so that
:mod:`topoccl.bench.runner` can set the environment first.
"""
