"""GPT-2's alphabet: each byte written as one printable character, as tokenizers store it.

Knows nothing about vocabularies. Invariant: the two tables are each other's inverse over 0..255.
"""

from __future__ import annotations


def _alphabet() -> dict[int, str]:
    """Printable Latin-1 stands for itself; the rest is moved, in order, to U+0100 and up."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {byte: chr(byte) for byte in printable}
    moved = (byte for byte in range(256) if byte not in table)
    return table | {byte: chr(256 + i) for i, byte in enumerate(moved)}


CHAR_OF_BYTE = _alphabet()
BYTE_OF_CHAR = {char: byte for byte, char in CHAR_OF_BYTE.items()}
