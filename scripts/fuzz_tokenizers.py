#!/usr/bin/env python3
"""Records what Hugging Face `tokenizers` answers for 10,000 generated texts, for crates/text/tests/fuzzed.rs.

The texts come from a counter-based generator that the test has as well, so only hashes of the ids are kept: one for every hundred texts.

    scripts/get-tokenizers
    pip install tokenizers==0.23.3
    python3 scripts/fuzz_tokenizers.py
"""

import json
import pathlib

from tokenizers import Tokenizer

ROOT = pathlib.Path(__file__).parent.parent
DATA = ROOT / "crates/text/tests/data"
MASK = (1 << 64) - 1
FIXED = "Hello, world! 12345 naïve café 你好 🙂"

WORDS = ["the", " the", "The", " and", "I'm", "don't", "we'LL", " naïve", "café", "Straße", "привет", " мир", "你好", "世界", "こんにちは", "안녕",
         "नमस्ते", "مرحبا", "שלום", "สวัสดี", "return", "def ", "x**2", "http://a.b/c?d=e", "3.14", "1,000", "<b>", "</div>", "{\"a\": 1}", "🙂", "👩‍👩‍👧", "e\u0301"]
SPACES = [" ", "  ", "\n", "\n\n", "\r\n", "\t", "\t\t", "\u00a0", "\u3000", "\u2028", "     ", "\u200b"]
# First and last code point of ranges that texts are made of.
RANGES = [(0x21, 0x7E), (0x30, 0x39), (0x61, 0x7A), (0x41, 0x5A), (0xA1, 0xFF), (0x100, 0x17F), (0x300, 0x36F), (0x391, 0x3C9), (0x410, 0x44F), (0x5D0, 0x5EA),
          (0x621, 0x64A), (0x660, 0x669), (0x905, 0x939), (0x93E, 0x94D), (0xE01, 0xE3A), (0x1100, 0x1112), (0x1E00, 0x1EFF), (0x2010, 0x203A), (0x2150, 0x218B),
          (0x2200, 0x22FF), (0x3041, 0x3096), (0x30A1, 0x30FA), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0xFB00, 0xFB06), (0xFF01, 0xFF5E), (0x1F300, 0x1F64F), (0x20000, 0x2A6DF)]  # fmt: skip


def mix(z):
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


class Stream:
    def __init__(self, text):
        self.key, self.at = mix(text + 1), 0

    def below(self, n):
        self.at += 1
        return mix((self.key + self.at * 0x9E3779B97F4A7C15) & MASK) % n


def text(number):
    """One to sixteen pieces: a word, white space, or up to eight characters of one range."""
    r, out = Stream(number), []
    for _ in range(1 + r.below(16)):
        kind = r.below(8)
        if kind < 3:
            out.append(WORDS[r.below(len(WORDS))])
        elif kind < 5:
            out.append(SPACES[r.below(len(SPACES))])
        else:
            first, last = RANGES[r.below(len(RANGES))]
            out += [chr(first + r.below(last - first + 1)) for _ in range(1 + r.below(8))]
    return "".join(out)


def hashed(all_ids):
    """FNV-1a over the ids as little-endian 32-bit words, with a word of ones behind each text."""
    h = 0xCBF29CE484222325
    for ids in all_ids:
        for word in [*ids, 0xFFFFFFFF]:
            for byte in word.to_bytes(4, "little"):
                h = ((h ^ byte) * 0x100000001B3) & MASK
    return f"{h:016x}"


def record(path):
    tokenizer = Tokenizer.from_file(str(path))
    ids = [tokenizer.encode(text(i), add_special_tokens=False).ids for i in range(10_000)]
    return {
        "ids": sum(map(len, ids)),
        "hashes": [hashed(ids[i : i + 100]) for i in range(0, len(ids), 100)],
        "fixed": tokenizer.encode(FIXED, add_special_tokens=False).ids,
    }


def main():
    out = {"texts": [text(i) for i in range(3)], "byte_bpe": record(DATA / "byte_bpe.json")}
    for name in ("qwen3", "gemma3"):
        out[name] = record(ROOT / f"target/tokenizers/{name}.json")
    (DATA / "fuzzed.json").write_text(json.dumps(out, ensure_ascii=False) + "\n")


main()
