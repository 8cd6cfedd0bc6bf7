"""Ostinato next to other runtimes, on the same models, weights, inputs and cores.

``python -m bench compare --help`` says how to run it. The parts:

- :mod:`~bench.compare.workloads`: what is run: sizes, weights, inputs, counted work;
- :mod:`~bench.compare.peers`: how each runtime runs it, one module each;
- :mod:`~bench.compare.worker`: the process that holds one runtime with one workload;
- :mod:`~bench.compare.floors`: what the machine could do at best;
- :mod:`~bench.compare.measure`: alternates between those processes;
- :mod:`~bench.compare.report`: table, JSON, plot.
"""
