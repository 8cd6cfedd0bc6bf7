"""A language model in four ways: a streamed chat, a batch, JSON by a schema, and a reused prefix.

    python examples/language_model.py MODEL [--threads 2] [--tokens 40]

``MODEL`` is a folder, a GGUF file, or a name on the hub; ``docs/first-answer.md`` says where to
find a small one. Ends with exit code 1 if an answer in a batch differs from the same one alone.
"""

from __future__ import annotations

import argparse
import sys

import ostinato as ost
from ostinato.llm import LLM, Grammar, NGrams, Sampling

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def chat(model: LLM, tokens: int) -> None:
    """Print an answer as it is generated."""
    messages = [{"role": "user", "content": "Tell me about the sea."}]
    with model.stream_chat(messages, max_tokens=tokens, temperature=0.7, seed=1) as stream:
        for delta in stream:
            print(delta.text, end="", flush=True)
    timings, usage = stream.result().timings, stream.result().usage
    seconds = timings.total - timings.first_token
    rate = (usage.completion - 1) / seconds if seconds else 0.0
    print(f"\n  first token after {timings.first_token:.2f} s, then {rate:.1f} tokens a second\n")


def batch(model: LLM, tokens: int) -> bool:
    """Continue several prompts together; whether each has the tokens that it has alone."""
    prompts = ["The sea is", "A mountain is", "In the forest, ", "At night, "]
    samplings = [Sampling(max_tokens=tokens, seed=n, temperature=0.7) for n in range(len(prompts))]
    found = model.generate_many(prompts, samplings)
    for prompt, answer in zip(prompts, found, strict=True):
        print(prompt, answer.text.replace("\n", " "))
    alone = [model.generate(p, s).tokens for p, s in zip(prompts, samplings, strict=True)]
    equal = alone == [answer.tokens for answer in found]
    print(f"  each the same as alone: {equal}\n")
    return equal


def structured(model: LLM, tokens: int) -> None:
    """Print an answer that fits a JSON schema."""
    messages = [{"role": "user", "content": "Ada is 36 years old. Name and age, as JSON."}]
    grammar = Grammar.json_schema(SCHEMA)
    print(model.chat(messages, grammar=grammar, temperature=0, max_tokens=tokens).text, "\n")


def prefix(model: LLM) -> None:
    """Read a long prompt twice: the second time from the cache."""
    prompt = "Once upon a time there was a king. " * 8
    for _ in range(2):
        answer = model.generate(prompt, max_tokens=1)
        usage, seconds = answer.usage, answer.timings.first_token
        print(f"{usage.cached} of {usage.prompt} tokens cached: first token in {seconds:.3f} s")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--tokens", type=int, default=40)
    options = parser.parse_args()
    with ost.llm.load(options.model, threads=options.threads, context=512, draft=NGrams()) as model:
        chat(model, options.tokens)
        equal = batch(model, options.tokens)
        structured(model, options.tokens)
        prefix(model)
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
