"""The loop IR in languages like C: index expressions, scalar expressions and the stores they feed.

A :class:`~ostinato.backends.common.clike.dialect.Dialect` has all that such languages differ in.
The loops around a nest's statements are a device's own.
"""
