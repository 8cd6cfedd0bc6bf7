"""Lowering: a graph of native ops becomes kernels over buffers, on every device.

Read :mod:`~ostinato.lower.lowering` first, the driver. It forms regions (``fusion/``), decides
where values are stored (``memory/``), and has each region lowered by a rule (``rules/``) into a
kernel, most often a nest of loops (``loopir/``).
"""
