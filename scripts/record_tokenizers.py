#!/usr/bin/env python3
"""Records what independent tokenizer implementations answer, for the tests of crates/text.

Trains three small vocabularies on the text below and writes them with the ids that Hugging Face `tokenizers` and Google
`sentencepiece` give for a list of awkward texts:

  byte_bpe.json        a tokenizer.json (byte-level BPE, split like SmolLM's), with special and user-defined tokens
  byte_bpe_cases.json.lzma  its ids
  rule_cases.json.lzma a vocabulary trained across word borders, so that it shows where a text is split, and its ids under
                       every splitting rule of `tokenizer.ggml.pre`
  spm_cases.json.lzma  a SentencePiece BPE vocabulary with scores and byte fallback, and its ids

    pip install tokenizers==0.23.1 sentencepiece==0.2.3
    python3 scripts/record_tokenizers.py
"""

import io
import json
import lzma
import pathlib
import random

import sentencepiece
import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

OUT = pathlib.Path(__file__).parent.parent / "crates/text/tests/data"

TRAINING = """
The gardener opened the gate and walked to the river, where the heron was waiting. "You're late," said the heron.
"We've all been waiting, and they'll have noticed; I'm sure it's nothing." 1234567890 years, 3.14159 miles, 2,048 tokens.
def weight(x, y):
    if x == y:
        return {"key": [1, 22, 333, 4444], 'other': x ** 2}
    for i in range(10):
        print(f"{i:>8} {i*i}")  # a comment
Der Gärtner öffnete das Tor und ging zum Fluß. L'été dernier, le garçon naïf a mangé des crêpes. Ünïcödé für alle.
Привет, мир! Как дела? 你好，世界。今天天气很好。こんにちは世界。안녕하세요 세계. नमस्ते दुनिया, क्षत्रिय. مرحبا بالعالم
The quick brown fox jumps over the lazy dog. THE QUICK BROWN FOX. theQuickBrownFox, the_quick_brown_fox, TheQuickBrownFoxes' tails.
<div class="a">text</div> https://example.org/path?query=1&other=two#part
🙂 🙃 👩‍👩‍👧 e\u0301 and \u00e9, ﬁne, ½ Ⅷ ² ٣٤٥
""" * 3

TEXTS = [
    "", " ", "  ", "a", " a", "a ", "\n", "\r\n", "\n\n\n", "\t\tx", " \n ", "   \n\n   x   ", "x" * 100, " " * 100, "\n" * 50,
    "Hello world! 12345 it's 3.14\n\n  def f(x):\n\treturn x**2  # ünïcode 日本語 🙂 \r\n   trailing   ",
    "I'M we'LL you'Re they'Ve IT'S can'T he'D 's 't'll", "don't, won't; 'tis", "12 123 1234 12345 1234567 1,000,000.00 ½ Ⅷ ²³ ٣٤٥٦",
    "theQuickBrownFox HTTPServer XMLHttpRequest iOS McDonald ÀÉÎ éàü ǅ", "snake_case_name --flag=value /usr/lib/x.so.6 C:\\dir\\file",
    "你好，世界。今天天气很好。こんにちは世界 カタカナ ひらがな 안녕하세요", "Привет, мир! Как дела?", "नमस्ते दुनिया क्षि त्रि", "مرحبا بالعالم ١٢٣",
    "e\u0301 \u00e9 n\u0303 \u00f1 \u1100\u1161 \uac00 \ufb01", "👩‍👩‍👧 🏳️‍🌈 🇩🇪 ❤️ 🙂🙃", "a\u00a0b\u2003c\u3000d\u2028e\u0085f", "\u200b\u200d\ufeff",
    "a\x00b\x01\x7f", "{\"a\": [1, 2.5e-3, null, true], \"b\": {\"c\": \"\\u00e9\\n\"}}", "if (a<b && c>=d || !e) { return *p++; }",
    "....!!!???", "a...b", "$100 €50 £20 +1 <=> ^~ | `x`", "(((nested)))[]{}", "line one\nline two\n\nline four\n", "tab\tsep\tvalues\n1\t2\t3",
    "x  y   z    w", "end with spaces   ", "   start with spaces", "mixed \n \n \t lines\n\t\n", "a/b//c///d\n/e", "#!@ \n\n% &*\n", "¡Hola! ¿Qué tal?",
    "＜ｆｕｌｌ　ｗｉｄｔｈ＞", "𝒜𝓁𝓅𝒽𝒶 𐍈 \U00020000", "<|im_start|>user\nhi<|im_end|>\n", "<think>\nhm\n</think>\n\nok", "a<|im_end|>b <|im_end|> c",
]

CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|"
TAIL = r"\s*[\r\n]+|\s+(?!\S)|\s+"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def cased(suffix, digits):
    word = r"[^\r\n\p{L}\p{N}]?"
    return f"{word}{UPPER}*{LOWER}+{suffix}|{word}{UPPER}+{LOWER}*{suffix}|{digits}" + r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + TAIL


QWEN2 = CONTRACTIONS + r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + TAIL
LLAMA3 = CONTRACTIONS + r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + TAIL
QWEN35 = CONTRACTIONS + r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|" + TAIL
DEEPSEEK = [
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|""" + TAIL,
]

# pre -> (patterns, NFC, ignore_merges); None: GPT-2's own pattern inside ByteLevel
RULES = {
    "gpt-2": (None, False, False),
    "smollm": ("digits", False, False),
    "llama-bpe": ([LLAMA3], False, True),
    "glm4": ([LLAMA3], False, False),
    "qwen2": ([QWEN2], True, False),
    "qwen35": ([QWEN35], True, False),
    "gpt-4o": ([cased("(?i:'s|'t|'re|'ve|'m|'ll|'d)?", r"\p{N}{1,3}")], False, False),
    "tekken": ([cased("", r"\p{N}")], False, True),
    "deepseek-v3": (DEEPSEEK, False, False),
}

MADE_BY = f"scripts/record_tokenizers.py, tokenizers {tokenizers.__version__}"
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
USER_DEFINED = ["<think>", "</think>"]


def splitter(patterns):
    if patterns is None:
        return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if patterns == "digits":
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    steps = [pre_tokenizers.Split(Regex(p), "isolated", False) for p in patterns]
    return pre_tokenizers.Sequence([*steps, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def byte_bpe():
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = splitter("digits")
    t.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=900, special_tokens=SPECIALS, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    t.train_from_iterator(TRAINING.split("\n\n"), trainer)
    t.add_tokens([AddedToken(s, special=False, normalized=False) for s in USER_DEFINED])
    return t


def random_texts(count, seed):
    rng = random.Random(seed)
    alphabet = list("abcdeTHQ  \n\n\t\r'sdlrvem0123456789.,!?-_/\\|<>(){}[]\"`~@#$%^&*=+") + ["é", "ß", "日", "本", "\u0301", "🙂", "\u00a0", "\u3000", "क", "्", "한", "І", "٣", "²"]
    words = TRAINING.split()
    texts = []
    for _ in range(count):
        parts = [rng.choice(words) if rng.random() < 0.4 else "".join(rng.choices(alphabet, k=rng.randint(1, 6))) for _ in range(rng.randint(1, 12))]
        texts.append("".join(parts))
    return texts


def encode(tokenizer, text):
    return tokenizer.encode(text, add_special_tokens=False).ids


def write(name, data):
    text = (json.dumps(data, ensure_ascii=False, separators=(",", ":")) + "\n").encode()
    packed = lzma.compress(text, lzma.FORMAT_ALONE, preset=9 | lzma.PRESET_EXTREME)
    (OUT / name).write_bytes(packed if name.endswith(".lzma") else text)


def record_byte_bpe():
    t = byte_bpe()
    saved = json.loads(t.to_str())
    write("byte_bpe.json", saved)
    texts = TEXTS + random_texts(120, 1)
    write(
        "byte_bpe_cases.json.lzma",
        {
            "made_by": MADE_BY,
            "texts": texts,
            "with_specials": [encode(t, s) for s in texts],
            "decoded": [t.decode(encode(t, s), skip_special_tokens=True) for s in texts],
        },
    )


def record_rules():
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = trainers.BpeTrainer(vocab_size=1400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    t.train_from_iterator(random_texts(4000, 3) + TEXTS * 3, trainer)
    model = json.loads(t.to_str())["model"]
    model["vocab"]["Ġzqx"] = len(model["vocab"])  # no merge makes it: only a rule that takes whole words finds it
    texts = TEXTS + ["a zqx zqxy"] + random_texts(120, 4)
    rules = {}
    for pre, (patterns, nfc, ignore_merges) in RULES.items():
        r = Tokenizer(models.BPE(vocab=model["vocab"], merges=[tuple(x) for x in model["merges"]], ignore_merges=ignore_merges))
        r.pre_tokenizer = splitter(patterns)
        if nfc:
            r.normalizer = normalizers.NFC()
        rules[pre] = [encode(r, s) for s in texts]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    merges = [f"{a} {b}" for a, b in model["merges"]]
    write("rule_cases.json.lzma", {"made_by": MADE_BY, "tokens": tokens, "merges": merges, "texts": texts, "ids": rules})


def record_spm():
    blob = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([line for line in TRAINING.split("\n") if line]),
        model_writer=blob,
        model_type="bpe",
        vocab_size=720,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=True,
        split_digits=True,
        allow_whitespace_only_pieces=True,
        user_defined_symbols=["<mark>"],
        character_coverage=0.98,
        minloglevel=2,
    )
    vocabs = {}
    for prefix in (True, False):
        sp = sentencepiece.SentencePieceProcessor(model_proto=with_prefix(blob.getvalue(), prefix))
        n = sp.vocab_size()
        kind = lambda i: 2 if sp.is_unknown(i) else 3 if sp.is_control(i) else 6 if sp.is_byte(i) else 5 if sp.is_unused(i) else 1
        texts = [s for s in TEXTS if "\0" not in s] + random_texts(120, 2)
        vocabs["prefix" if prefix else "no_prefix"] = {
            "ids": [sp.encode(s) for s in texts],
            "decoded": [sp.decode(sp.encode(s)) for s in texts],
        }
    tokens = [sp.id_to_piece(i) for i in range(n)]
    types = [4 if t == "<mark>" else kind(i) for i, t in enumerate(tokens)]
    write(
        "spm_cases.json.lzma",
        {
            "made_by": f"scripts/record_tokenizers.py, sentencepiece {sentencepiece.__version__}",
            "tokens": tokens,
            "scores": [sp.get_score(i) for i in range(n)],
            "types": types,
            "bos": sp.bos_id(),
            "eos": sp.eos_id(),
            "unk": sp.unk_id(),
            "texts": texts,
            **vocabs,
        },
    )


def with_prefix(proto, prefix):
    from sentencepiece import sentencepiece_model_pb2 as pb

    m = pb.ModelProto.FromString(proto)
    m.normalizer_spec.add_dummy_prefix = prefix
    return m.SerializeToString()


if __name__ == "__main__":
    OUT.mkdir(parents=True, exist_ok=True)
    record_byte_bpe()
    record_rules()
    record_spm()
