"""A mixture of experts that exceeds its memory: most experts stay in the model's file.

    python examples/expert_budget.py MODEL [--budget 2GiB] [--tokens 40] [--threads 2]

``MODEL`` is a folder or a GGUF file of a family with experts: Mixtral, Qwen3 MoE, gpt-oss, DeepSeek
V3, Qwen3-Next. Those that are called most move into the budget. With ``--check``, the model is
loaded with all experts in memory, too, and the exit code is 1 if its tokens differ.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

import ostinato as ost

if TYPE_CHECKING:
    from ostinato.llm import LLM

PROMPT = "The sea is"


def answer(model: LLM, tokens: int) -> list[int]:
    """The tokens of an answer, which is printed."""
    found = model.generate(PROMPT, max_tokens=tokens, temperature=0, ignore_eos=True)
    print(PROMPT + found.text)
    return list(found.tokens)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--budget", default="2GiB", help="memory of experts")
    parser.add_argument("--tokens", type=int, default=40)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--check", action="store_true", help="compare with all experts in memory")
    options = parser.parse_args()
    settings = {"threads": options.threads, "context": 512}
    with ost.llm.load(options.model, expert_budget=options.budget, **settings) as model:
        tokens, counters = answer(model, options.tokens), model.expert_counters
    if counters is None:
        print("all experts are in memory")
    else:
        moved, read = counters.bytes_moved / 1e6, counters.bytes_staged / 1e6
        print(f"{counters.hit_rate:.0%} of calls were of experts in memory")
        print(
            f"moved there: {counters.promotions} experts, {moved:.1f} MB; read apart: {read:.1f} MB"
        )
    if not options.check:
        return 0
    with ost.llm.load(options.model, **settings) as model:
        equal = answer(model, options.tokens) == tokens
    print(f"the same tokens as with all experts in memory: {equal}")
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
