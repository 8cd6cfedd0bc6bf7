"""Random texts for tokenizers: scripts, code, digits, emoji, controls, names of special tokens."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

_WORDS = re.findall(
    r"\S+",
    "the of and to in is you that it he was for on are as with his they I at be this have from or "
    "one had by word but not what all were we when your can said there use an each which she do "
    "how their if will up other about out many then them these so some her would make like him "
    "into time has look two more write go see number no way could people my than first water been "
    "call whale oil its now find long down day did get come made may part Tokenization "
    "unbelievable internationalisation don't it's I'll we've they're you'd I'm she'S HE'LL "
    "CamelCaseWord snake_case_word SCREAMING_CASE mixedUPPERlower l'eau qu'il",
)

_CODE = (
    "def f(x):\n    return x + 1\n",
    "for (int i = 0; i < n; ++i) {\n\t\ta[i] *= 2;\n}\n",
    "SELECT * FROM t WHERE a >= 10 AND b != 'x';",
    '<div class="a b">&nbsp;</div>',
    "https://example.com/path?q=1&r=%20#frag",
    '{"key": [1, 2.5e-3, null, true]}',
    "#include <stdio.h>\r\n",
    "    \t  if True:\n\n\n        pass  # ok",
    "a==b===c!==d<=>e->f=>g::h//i/*j*/",
    "$$x^2 + \\frac{1}{2}$$",
    "```python\nprint(1)\n```",
    "\\n\\t\\\\",
)

#: First and last code point of scripts and of blocks of signs.
_BLOCKS = (
    (0x20, 0x7E), (0xA0, 0xFF), (0x100, 0x24F), (0x370, 0x3FF), (0x400, 0x4FF), (0x531, 0x58F),
    (0x5D0, 0x5EA), (0x620, 0x64A), (0x660, 0x669), (0x905, 0x939), (0x93E, 0x94D), (0x985, 0x9B9),
    (0xB85, 0xBB9), (0xE01, 0xE3A), (0x10A0, 0x10FF), (0x1100, 0x11FF), (0x13A0, 0x13F5),
    (0x1E00, 0x1EFF), (0x1F00, 0x1FFE), (0x2010, 0x2027), (0x2030, 0x205E), (0x20A0, 0x20BF),
    (0x2100, 0x214F), (0x2190, 0x21FF), (0x2200, 0x22FF), (0x2500, 0x257F), (0x2581, 0x2581),
    (0x3001, 0x303F), (0x3041, 0x3096), (0x30A1, 0x30FA), (0x4E00, 0x9FA5), (0xAC00, 0xD7A3),
    (0xFF01, 0xFF5E), (0x1D400, 0x1D4FF), (0x1F300, 0x1F5FF), (0x1F600, 0x1F64F),
    (0x20000, 0x20100), (0x300, 0x36F), (0xFE00, 0xFE0F), (0x2160, 0x217F), (0xB2, 0xB3),
)  # fmt: skip

_EMOJI = ("👩‍👩‍👧‍👦", "🏳️‍🌈", "👍🏽", "🇩🇪", "☕️", "❤️‍🔥", "1️⃣")

_SPACES = (
    " ",
    "  ",
    "   ",
    " " * 8,
    "\t",
    "\n",
    "\r\n",
    "\n\n",
    " \n ",
    "\u00a0",
    "\u3000",
    "\u2003",
)

_CONTROLS = ("\x00", "\x01", "\x07", "\x1b[0m", "\x7f", "\u200b", "\u200d", "\ufeff", "\ufffd")


def fuzzed_texts(
    count: int, seed: int, specials: Sequence[str] = (), *, controls: bool = True
) -> list[str]:
    """Texts of up to some hundred characters.

    Args:
        count: of texts.
        seed: of the generator.
        specials: names of special tokens, which some texts have.
        controls: whether some texts have control characters.
    """
    source = random.Random(seed)
    return [_text(source, specials, controls) for _ in range(count)]


def _text(source: random.Random, specials: Sequence[str], controls: bool) -> str:
    return "".join(_part(source, specials, controls) for _ in range(source.randint(0, 12)))


def _part(source: random.Random, specials: Sequence[str], controls: bool) -> str:
    match source.randint(0, 11):
        case 0 | 1 | 2:
            words = [source.choice(_WORDS) for _ in range(source.randint(1, 8))]
            return source.choice(("", " ")) + " ".join(words)
        case 3:
            return source.choice(_CODE)
        case 4 | 5:
            first, last = source.choice(_BLOCKS)
            return "".join(chr(source.randint(first, last)) for _ in range(source.randint(1, 6)))
        case 6:
            return str(source.randint(0, 10 ** source.randint(1, 12)))
        case 7:
            return source.choice(_EMOJI)
        case 8:
            return source.choice(_SPACES)
        case 9:
            return source.choice("!?.,;:-_=+*/\\|@#$%^&~`'\"()[]{}<>") * source.randint(1, 7)
        case 10:
            return source.choice(specials) if specials else "<s>"
        case _:
            return source.choice(_CONTROLS) if controls else source.choice(_WORDS)
