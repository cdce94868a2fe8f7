"""Scripts that measure, each writing one JSON record with its provenance.

``python -m benchmarks --help`` lists them. To add one, add a file with a one-line docstring and a
function ``measure(device, *, quick, tables)``.
"""
