"""Expected numbers of the tiny models: crates/testkit/expected/NAME.json, computed by transformers.

Usage: python scripts/oracle_tiny.py [--check] [--sensitivity] [--try-seeds N] [NAME ...]

Everything runs on the CPU in float32 with eager attention and the plain PyTorch Gated DeltaNet. Made with transformers
5.24.0 and torch 2.15.0. --check compares a fresh run with the committed files instead of writing them. --sensitivity
tells how far the logits move when one kind of tensor is perturbed by a few per cent. --try-seeds prints how well
separated the decisions (expert choices, greedy tokens) are under other seeds, for choosing one.

A model is only accepted if its decisions do not hang on rounding: see MIN_*.
"""

import argparse
import base64
import json
import pathlib
import re
import tempfile

import numpy as np
import torch
import transformers
from transformers.models.qwen3_5 import modeling_qwen3_5 as qwen_dense
from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe as qwen_moe

import tinygen

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

POSITIONS = [0, 1, 2, 40, 62, 63, 64, 65, 66, 127, 128, 199, 255, 256, 257, 511, 512, 599, 703, 716]
N_IDS = 717  # 11 chunks of 64 and 13 more; crosses two pages of 256
PROMPT = 41
GREEDY = 16
ROUTED = 64
MTP_POSITIONS = [0, 1, 39, 63, 64, 200, 715]
MIN_MARGIN = 1e-5  # smallest allowed difference of the k-th and the next probability, at any position and layer
MIN_GREEDY_GAP = 2e-2  # smallest allowed lead, in logits, of a greedy token


UNUSED = ("mtp.", "model.visual.")  # tensors that transformers' text models do not load


def text_config(config):
    return config.get("text_config", config)


def token_ids(model):
    vocab = text_config(model["config"])["vocab_size"]
    return (3 + tinygen.bits(model["seed"], "token ids", N_IDS) % np.uint64(vocab - 3)).astype(np.int64)


def load(model, arrays):
    """The transformers model, from a checkpoint directory exactly as testkit writes it."""
    with tempfile.TemporaryDirectory() as d:
        d = pathlib.Path(d)
        tinygen.write_checkpoint(model, d)
        config = transformers.AutoConfig.from_pretrained(d).get_text_config()
        cls = model["config"]["architectures"][0].replace("ForConditionalGeneration", "ForCausalLM")
        m, report = getattr(transformers, cls).from_pretrained(
            d, config=config, attn_implementation="eager", dtype=torch.float32, output_loading_info=True)
    assert not report["missing_keys"] and not report["mismatched_keys"], report
    assert all(k.startswith(UNUSED) for k in report["unexpected_keys"]), report
    # With buffers: some families store numbers that are no parameters. A tied head is its embedding.
    n = sum(v.numel() for v in {v.data_ptr(): v for v in m.state_dict().values()}.values())
    assert n == sum(a.size for k, a in arrays.items() if not k.startswith(UNUSED)), "a tensor was not used"
    return m.eval()


def softmax_router(layer):
    """The Qwen mixtures, gpt-oss: a router that chooses by its logits."""
    mlp = layer.mlp
    return getattr(mlp, "gate", None) or getattr(mlp, "router", None), lambda r, out: torch.softmax(out[0].float(), -1)


def gemma4_router(layer):
    """Chooses by probabilities, which it gives out."""
    return getattr(layer, "router", None), lambda r, out: out[0].float()


def glm4_router(layer):
    """Chooses by sigmoid scores with a correction, inside the best groups."""

    def scores(r, out):
        s = out[0].sigmoid() + r.e_score_correction_bias
        groups = s.view(s.shape[0], r.num_group, -1)
        best = groups.topk(2, -1).values.sum(-1).topk(r.topk_group, -1).indices
        closed = torch.ones_like(groups[..., 0], dtype=torch.bool).scatter(1, best, False)
        return groups.masked_fill(closed[..., None], float("-inf")).flatten(1)

    return getattr(layer.mlp, "gate", None), scores


ROUTERS = {"gemma4_text": gemma4_router, "glm4_moe": glm4_router}


def watch_routers(m):
    """Per layer with a mixture, what the latest forward call chose experts by."""
    probs = {}
    of = ROUTERS.get(m.config.model_type, softmax_router)
    for l, layer in enumerate(m.model.layers):
        router, scores = of(layer)
        if router is not None and hasattr(router, "register_forward_hook") and not isinstance(router, torch.nn.Linear):
            router.register_forward_hook(lambda r, _, out, l=l, scores=scores: probs.__setitem__(l, scores(r, out)))
    return probs


def top_k(config):
    """Experts a row uses, by whichever name the family has for it."""
    names = ("num_experts_per_tok", "top_k_experts")
    return next(k for k in (getattr(config, n, None) for n in names) if k)


def routing(probs, k):
    """expert ids [positions, layers, k] by falling score, and two margins [positions, layers]."""
    p = torch.stack([probs[l] for l in sorted(probs)], 1)
    top = p.topk(k + 1, -1)
    gaps = top.values[..., :-1] - top.values[..., 1:]
    return top.indices[..., :k], gaps[..., -1], gaps.min(-1).values


def to_logits(m, hidden):
    """Logits, capped where the family does."""
    logits, cap = m.lm_head(hidden), getattr(m.config, "final_logit_softcapping", None)
    return torch.tanh(logits / cap) * cap if cap else logits


def greedy(m, ids):
    """Tokens after ids, each with its lead over the runner-up."""
    ids, gaps = list(ids), []
    for _ in range(GREEDY):
        top = m(torch.tensor([ids]), use_cache=False).logits[0, -1].topk(2)
        gaps.append(float(top.values[0] - top.values[1]))
        ids.append(int(top.indices[0]))
    return ids[-GREEDY:], gaps


def step_difference(m, ids, full):
    """Largest difference between one pass over all tokens and the same tokens in a cached prefill and single steps:
    two orders of the same float32 arithmetic, hence a measure of the expected numbers' own error."""
    n = ids.shape[1] - 24
    out = m(ids[:, :n], use_cache=True)
    worst = (out.logits[0] - full[:n]).abs().max()
    for i in range(n, ids.shape[1]):
        out = m(ids[:, i : i + 1], use_cache=True, cache=out.past_key_values)
        worst = max(worst, (out.logits[0, 0] - full[i]).abs().max())
    return float(worst)


def mtp_head(m, arrays):
    """The multi-token-prediction head, which transformers itself ignores, from transformers' own modules."""
    c = type(m.config)(**{**m.config.to_dict(), "layer_types": ["full_attention"], "num_hidden_layers": 1})
    c._attn_implementation = "eager"
    kit, prefix = (qwen_moe, "Qwen3_5Moe") if hasattr(c, "num_experts") else (qwen_dense, "Qwen3_5")
    norm = lambda: getattr(kit, prefix + "RMSNorm")(c.hidden_size, eps=c.rms_norm_eps)
    head = torch.nn.ModuleDict({
        "layers": torch.nn.ModuleList([getattr(kit, prefix + "DecoderLayer")(c, 0)]),
        "pre_fc_norm_embedding": norm(), "pre_fc_norm_hidden": norm(), "norm": norm(),
        "fc": torch.nn.Linear(2 * c.hidden_size, c.hidden_size, bias=False),
    }).eval().float()
    head.load_state_dict({k[4:]: torch.from_numpy(a) for k, a in arrays.items() if k.startswith("mtp.")})
    return head


def mtp_rows(m, head, ids, hidden):
    """Row t joins token ids[t] with the trunk's hidden state (after its final norm) of the position before it, and
    predicts the token after ids[t]. Returns (logits, hidden state to draft further from)."""
    x = head["fc"](torch.cat([head["pre_fc_norm_embedding"](m.get_input_embeddings()(ids)),
                              head["pre_fc_norm_hidden"](hidden)], -1))
    n = x.shape[1]
    pos = torch.arange(n)[None]
    rope = m.model.rotary_emb(x, pos[None].expand(3, 1, -1))
    mask = torch.full((1, 1, n, n), float("-inf")).triu(1)
    x = head["norm"](head["layers"][0](x, position_embeddings=rope, attention_mask=mask, position_ids=pos))
    return m.lm_head(x), x


def draft(m, head, ids, n):
    """n draft tokens after ids, by feeding each prediction and its post-norm state back."""
    ids = torch.tensor([ids])
    hidden = m.model(ids, use_cache=False).last_hidden_state
    first = int(m.lm_head(hidden)[0, -1].argmax())  # the main model's own next token
    tokens, states, out, gaps = torch.cat([ids[:, 1:], torch.tensor([[first]])], 1), hidden, [], []
    for _ in range(n):
        logits, x = mtp_rows(m, head, tokens, states)
        top = logits[0, -1].topk(2)
        out.append(int(top.indices[0]))
        gaps.append(float(top.values[0] - top.values[1]))
        tokens = torch.cat([tokens, top.indices[:1][None]], 1)
        states = torch.cat([states, x[:, -1:]], 1)
    return first, out, gaps


def f32(t):
    return base64.b64encode(t.detach().numpy().astype("<f4").tobytes()).decode()


def rows(logits, positions):
    return [{"position": p, "values": f32(logits[p])} for p in positions]


def gap(logits):
    top = logits.topk(2, -1).values
    return [round(float(x), 4) for x in top[:, 0] - top[:, 1]]


def rounded(t, digits):
    return [[round(float(x), digits) for x in r] for r in t]


@torch.no_grad()
def expectations(model):
    arrays = tinygen.tensors(model)
    m = load(model, arrays)
    probs = watch_routers(m)
    ids = torch.from_numpy(token_ids(model))[None]
    hidden = m.model(ids, use_cache=False).last_hidden_state
    logits = to_logits(m, hidden)[0]
    want = {
        "made_with": f"transformers {transformers.__version__}, torch {torch.__version__.split('+')[0]}, cpu, float32",
        "safetensors_sha256": tinygen.sha256(tinygen.safetensors_bytes(arrays)),
        "ids": ids[0].tolist(),
        "logits": rows(logits, POSITIONS),
        "argmax": logits.argmax(-1).tolist(),
        "top2_gap": gap(logits),
    }
    if probs:
        k = top_k(m.config)
        experts, margin, order = routing(probs, k)
        want["routing"] = {
            "experts": experts[:ROUTED].tolist(),
            "margin": rounded(margin[:ROUTED], 6),
            "order_margin": rounded(order[:ROUTED], 6),
            "least_margin": float(f"{margin.min():.3g}"),
        }
    tokens, gaps = greedy(m, ids[0, :PROMPT].tolist())
    want["greedy"] = {"prompt": PROMPT, "ids": tokens, "top2_gap": [round(g, 4) for g in gaps]}
    want["step_difference"] = float(f"{step_difference(m, ids, logits):.3g}")
    if any(k.startswith("mtp.") for k in arrays):
        head = mtp_head(m, arrays)
        l, _ = mtp_rows(m, head, ids[:, 1:], hidden[:, :-1])
        first, drafted, gaps = draft(m, head, ids[0, :PROMPT].tolist(), 4)
        want["mtp"] = {
            "logits": rows(l[0], MTP_POSITIONS), "argmax": l[0].argmax(-1).tolist(), "top2_gap": gap(l[0]),
            "draft_first": first, "draft": drafted, "draft_top2_gap": [round(g, 4) for g in gaps],
        }
    return want, logits


def separation(want):
    """(least greedy lead, least difference between a chosen and a not chosen expert's probabilities)"""
    gaps = want["greedy"]["top2_gap"] + want.get("mtp", {}).get("draft_top2_gap", [])
    return min(gaps), want.get("routing", {}).get("least_margin", 1.0)


@torch.no_grad()
def sensitivity(model):
    """Perturbs one kind of tensor at a time by 5 % of its spread, in all layers, and prints how far logits move."""
    arrays = tinygen.tensors(model)
    m = load(model, arrays)
    ids = torch.from_numpy(token_ids(model))[None, :128]
    base = m(ids, use_cache=False).logits
    kinds = {}
    for n, p in m.named_parameters():
        kinds.setdefault(re.sub(r"\.\d+\.", ".*.", n), []).append(p)
    for kind, params in kinds.items():
        saved = [p.clone() for p in params]
        g = torch.Generator().manual_seed(0)
        for p in params:
            spread = p.std() if p.numel() > 1 else p.abs().mean()
            p.add_(torch.randn(p.shape, generator=g) * spread * 0.05)
        moved = (m(ids, use_cache=False).logits - base).abs().amax(-1)[0]
        for p, s in zip(params, saved):
            p.copy_(s)
        print(f"  {kind:60} max {moved.max():.4f}  median position {moved.median():.5f}")


def differences(old, new):
    """What --check reports: exact fields that differ, and the largest difference of the logits."""
    unpack = lambda w: np.concatenate([np.frombuffer(base64.b64decode(r["values"]), "<f4") for r in w])
    out = [k for k in ("safetensors_sha256", "ids", "argmax") if old[k] != new[k]]
    out += [k for k in ("routing", "greedy") if k in new and [old[k].get(f) for f in ("experts", "ids")]
            != [new[k].get(f) for f in ("experts", "ids")]]
    worst = max(float(np.abs(unpack(old[k]["logits"] if k else old["logits"])
                             - unpack(new[k]["logits"] if k else new["logits"])).max())
                for k in ("", "mtp") if not k or k in new)
    return out, worst


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("names", nargs="*")
    a.add_argument("--check", action="store_true")
    a.add_argument("--sensitivity", action="store_true")
    a.add_argument("--try-seeds", type=int, default=0, metavar="N")
    a = a.parse_args()
    failed = False
    for name in a.names or tinygen.names():
        model = tinygen.load(name)
        for seed in range(1, a.try_seeds + 1):
            want, _ = expectations({**model, "seed": seed})
            print(f"{name} seed {seed}: greedy lead {separation(want)[0]:.4f}, expert margin {separation(want)[1]:.2e}, "
                  f"{len(set(want['greedy']['ids']))} different greedy tokens, step difference {want['step_difference']:.1e}",
                  flush=True)
        if a.try_seeds:
            continue
        want, logits = expectations(model)
        lead, margin = separation(want)
        print(f"{name}: logits std {logits.std():.3f}, largest {logits.abs().max():.2f}; greedy lead {lead:.4f}; "
              f"expert margin {margin:.2e}; step difference {want['step_difference']:.1e}; "
              f"distinct argmax {len(set(want['argmax']))}; greedy {want['greedy']['ids']}", flush=True)
        if a.sensitivity:
            sensitivity(model)
            continue
        if lead < MIN_GREEDY_GAP or margin < MIN_MARGIN:
            failed = True
            print(f"{name}: decisions hang on rounding; choose another seed")
            continue
        path = tinygen.KIT / "expected" / f"{name}.json"
        if a.check:
            fields, worst = differences(json.loads(path.read_text()), want)
            failed |= bool(fields) or worst > 2e-5
            print(f"  differing fields {fields}, largest logit difference {worst:.1e}")
        else:
            path.write_text(json.dumps(want, separators=(",", ":")).replace(',"', ',\n"') + "\n")
    raise SystemExit(failed)


if __name__ == "__main__":
    main()
