"""Ops on tensors: `reference` says what each one means, the other files are faster.

Knows nothing of ours; imports torch alone.
"""
