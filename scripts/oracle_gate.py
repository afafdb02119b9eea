"""Reference scores for the activation-quantisation gate: per token of fixtures/gate_text.txt, the negative log likelihood
and the best token under an exact float32 forward pass of transformers on the CPU.

  python scripts/oracle_gate.py score  MODEL TOKENIZER TEXT OUT.json
  python scripts/oracle_gate.py sample MODEL TOKENIZER > samples.txt
  python scripts/oracle_gate.py check  MODEL ORACLE.json

MODEL is a transformers directory (any dtype, computed in float32) or a GGUF file of the llama family, whose blocks are
dequantised with gguf-py. TOKENIZER is a tokenizer.json. `score` cuts the text's ids into windows of 1,024, each scored
on its own, so the first token of a window has no score. `sample` writes the model's own answers to a few requests, at
temperature 0.8 with fixed seeds. `check` compares the top-8 logits in a list of {"ids", "top8_ids", "top8_logits"}.
"""

import json
import pathlib
import sys

import numpy as np
import tokenizers
import torch
import transformers

WINDOW = 1024
REQUESTS = [
    "Write a short story about a lighthouse keeper who repairs an old radio.",
    "Explain how a bicycle stays upright.",
    "Write a Python function that merges two sorted lists, and explain it.",
    "Give me a recipe for vegetable soup.",
    "Write a polite letter to a neighbour about a noisy dog.",
    "What are the differences between a comet and an asteroid?",
    "Describe a walk through a market in the morning.",
    "List five ways to save water at home and say why each helps.",
]


def gguf_llama(path):
    """LlamaForCausalLM with the file's weights. GGUF stores the q and k rows of each head with the two halves of the
    rotary pairs interleaved; transformers wants the halves apart."""
    import gguf

    r = gguf.GGUFReader(path)
    field = lambda k: r.fields["llama." + k].contents()
    heads, kv = field("attention.head_count"), field("attention.head_count_kv")
    raw = {t.name: gguf.dequantize(t.data, t.tensor_type) for t in r.tensors}
    cfg = transformers.LlamaConfig(
        vocab_size=raw["token_embd.weight"].shape[0], hidden_size=field("embedding_length"),
        intermediate_size=field("feed_forward_length"), num_hidden_layers=field("block_count"),
        num_attention_heads=heads, num_key_value_heads=kv, rms_norm_eps=field("attention.layer_norm_rms_epsilon"),
        max_position_embeddings=field("context_length"), tie_word_embeddings="output.weight" not in raw,
        rope_parameters={"rope_type": "default", "rope_theta": field("rope.freq_base")})
    names = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
             "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
             "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
    top = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight",
           "output.weight": "lm_head.weight"}
    state = {}
    for name, w in raw.items():
        part = name.split(".")
        if part[0] == "blk":
            n = {"attn_q": heads, "attn_k": kv}.get(part[2])
            if n:
                w = w.reshape(n, w.shape[0] // n // 2, 2, w.shape[1]).swapaxes(1, 2).reshape(w.shape)
            name = f"model.layers.{part[1]}.{names[part[2]]}.{part[3]}"
        else:
            name = top[name]
        state[name] = torch.from_numpy(np.array(w, np.float32))
    cfg._attn_implementation = "eager"
    m = transformers.LlamaForCausalLM(cfg).float()
    missing, unexpected = m.load_state_dict(state, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
    m.tie_weights()
    return m.eval()


def load(path):
    if pathlib.Path(path).is_file():
        return gguf_llama(path)
    return transformers.AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager").eval()


@torch.no_grad()
def score(model, tok, text_path, out):
    text = pathlib.Path(text_path).read_text(encoding="utf-8")
    ids = tok.encode(text, add_special_tokens=False).ids
    windows = []
    for at in range(0, len(ids), WINDOW):
        w = torch.tensor(ids[at : at + WINDOW])
        logits = model(w[None], use_cache=False).logits[0, :-1].double()
        nll = -logits.log_softmax(-1).gather(1, w[1:, None])[:, 0]
        two = logits.topk(2, -1)
        windows.append({
            "ids": w.tolist(), "nll": [round(float(x), 4) for x in nll], "top1": two.indices[:, 0].tolist(),
            "gap": [round(float(a - b), 3) for a, b in two.values]})
        print(f"{at + len(w)} of {len(ids)} ids, mean NLL {nll.mean():.4f}", file=sys.stderr, flush=True)
    every = [x for w in windows for x in w["nll"]]
    hit = sum(a == b for w in windows for a, b in zip(w["ids"][1:], w["top1"]))
    result = {
        "made_with": f"transformers {transformers.__version__}, torch {torch.__version__.split('+')[0]}, cpu, float32",
        "text": pathlib.Path(text_path).name, "window": WINDOW, "scored": len(every),
        "mean_nll": round(float(np.mean(every)), 5), "top1_is_next": round(hit / len(every), 5), "windows": windows}
    pathlib.Path(out).write_text(
        json.dumps(result, separators=(",", ":")).replace(',"windows":[', ',\n"windows":[\n').replace('},{', '},\n{') + "\n")
    print(f"{out}: {len(every)} scored, mean NLL {result['mean_nll']}, top-1 {result['top1_is_next']}", file=sys.stderr)


@torch.no_grad()
def sample(model, tok):
    end = tok.token_to_id("<|im_end|>")
    for seed, request in enumerate(REQUESTS):
        g = torch.Generator().manual_seed(seed)
        chat = f"<|im_start|>user\n{request}<|im_end|>\n<|im_start|>assistant\n"
        ids, cache, out = torch.tensor([tok.encode(chat, add_special_tokens=False).ids]), None, []
        while len(out) < 320:
            r = model(ids, cache=cache, use_cache=True)
            cache = r.past_key_values
            p = torch.softmax(r.logits[0, -1] / 0.8, -1)
            out.append(int(torch.multinomial(p, 1, generator=g)))
            if out[-1] == end:
                break
            ids = torch.tensor([out[-1:]])
        print(f"{request}\n\n{tok.decode(out, skip_special_tokens=True).strip()}\n", flush=True)


@torch.no_grad()
def check(model, oracle):
    for c in json.loads(pathlib.Path(oracle).read_text())["cases"]:
        logits = model(torch.tensor([c["ids"]]), use_cache=False).logits[0, -1]
        worst = max(abs(float(logits[i]) - v) for i, v in zip(c["top8_ids"], c["top8_logits"]))
        print(f"{c.get('prompt', '')!r}: largest difference {worst:.5f}")


if __name__ == "__main__":
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    if len(sys.argv) < 4 or sys.argv[1] not in ("score", "sample", "check"):
        raise SystemExit(__doc__)
    verb, model_path, rest = sys.argv[1], sys.argv[2], sys.argv[3:]
    model = load(model_path)
    if verb == "check":
        check(model, rest[0])
    elif verb == "sample":
        sample(model, tokenizers.Tokenizer.from_file(rest[0]))
    else:
        score(model, tokenizers.Tokenizer.from_file(rest[0]), rest[1], rest[2])
