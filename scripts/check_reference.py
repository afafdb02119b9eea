"""Compares a snug binary with reference numbers, through `snug logits MODEL --ids 1,2,3 [--all] [--routing] --json`.

  check_reference.py SNUG kit   NAME...                      tiny models of crates/testkit, written to a temporary directory
  check_reference.py SNUG tiny  MODEL EXPECTED.json          a tiny checkpoint (directory or GGUF) with ids, logits_last, argmax
  check_reference.py SNUG top8  MODEL ORACLE.json            cases of ids, top8_ids, top8_logits, greedy_ids; a mean NLL
  check_reference.py SNUG trained MODEL REFERENCE_DIR        prompts of reference.json with reference.safetensors beside it

Options: --tol X (largest allowed logit difference), --routing (also compare expert ids, if the binary prints them),
--arg X (passed on to snug, may be repeated). A token counts as different only where the reference leads by more than
twice the tolerance. Exits with 1 if anything differs. Needs numpy.

The binary prints {"logits": [[...], ...]} with --all and one row without (nested or not), and with --routing also
{"routing": [position][layer][rank]}, by falling probability.
"""

import argparse
import base64
import json
import pathlib
import struct
import subprocess
import tempfile

import numpy as np

import tinygen

DEFAULT_TOL = {"kit": 1e-4, "tiny": 1e-4, "top8": 1e-3, "trained": 1e-3}


class Snug:
    def __init__(self, binary, extra):
        self.binary, self.extra = binary, extra

    def call(self, model, ids, *flags):
        cmd = [self.binary, "logits", str(model), "--ids", ",".join(map(str, ids)), *flags, "--json", *self.extra]
        r = subprocess.run(cmd, capture_output=True)
        if r.returncode:
            raise SystemExit(f"{' '.join(cmd)[:300]}\nexit {r.returncode}: {r.stderr.decode(errors='replace')[-2000:]}")
        return json.loads(r.stdout)

    def all(self, model, ids):
        rows = np.array(self.call(model, ids, "--all")["logits"], np.float32)
        if rows.ndim != 2 or len(rows) != len(ids):
            raise SystemExit(f"{len(ids)} ids gave logits of shape {rows.shape}")
        return rows

    def last(self, model, ids):
        return np.array(self.call(model, ids)["logits"], np.float32).reshape(-1)

    def greedy(self, model, ids, n):
        """What `snug run` continues with, token by token."""
        cmd = [self.binary, "run", str(model), "--ids", ",".join(map(str, ids)), "--temp", "0", "-n", str(n)]
        cmd += ["--ignore-eos", "--json", *self.extra]
        return json.loads(subprocess.run(cmd, capture_output=True, check=True).stdout)["ids"]

    def routing(self, model, ids):
        return np.array(self.call(model, ids, "--routing")["routing"])


class Report:
    def __init__(self, tol):
        self.tol, self.failed, self.worst = tol, 0, 0.0

    def line(self, ok, text):
        self.failed += not ok
        print(f"{'ok  ' if ok else 'FAIL'} {text}", flush=True)

    def close(self, what, got, want, tol=None):
        """Largest absolute difference; NaN never passes."""
        got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
        if got.shape != want.shape:
            return self.line(False, f"{what}: shape {got.shape}, want {want.shape}")
        d = float(np.abs(got - want).max())
        self.worst = max(self.worst, d) if d == d else float("nan")
        self.line(d <= (self.tol if tol is None else tol), f"{what}: largest difference {d:.2e}")

    def tokens(self, what, rows, want, gaps):
        """Best tokens of rows against the reference's; a difference counts where the lead exceeds twice the tolerance."""
        got = np.argmax(rows, -1)
        diff = [i for i, (g, w) in enumerate(zip(got, want)) if g != w]
        bad = [i for i in diff if not gaps[i] <= 2 * self.tol]
        text = f"{what}: {len(want) - len(diff)} of {len(want)} best tokens equal"
        if diff:
            i = (bad or diff)[0]
            text += f"; first {'difference' if bad else 'tie'} at {i}: {got[i]} for {want[i]}, lead {gaps[i]:.4f}"
        self.line(not bad and len(rows) == len(want), text)

    def experts(self, what, got, want, margin, order_margin=None):
        """Sets of experts, where the last chosen leads the next by more than 1e-5; their order likewise."""
        want = np.asarray(want)
        if got.shape[1:] != want.shape[1:] or len(got) < len(want):
            return self.line(False, f"{what}: routing of shape {got.shape}, want {want.shape}")
        got = got[: len(want)]
        same = (np.sort(got, -1) == np.sort(want, -1)).all(-1)
        bad = ~same & (np.asarray(margin) > 1e-5)
        if order_margin is not None:
            bad |= ~(got == want).all(-1) & (np.asarray(order_margin) > 1e-5)
        self.line(not bad.any(), f"{what}: {int(same.sum())} of {same.size} expert sets equal, {int(bad.sum())} wrong")


def own_gaps(rows):
    """Lead of the best token in each of our own rows, for references that do not tell theirs."""
    top = np.partition(rows, -2, -1)[:, -2:]
    return np.abs(top[:, 1] - top[:, 0])


def kit(snug, report, names, routing):
    unpack = lambda row: np.frombuffer(base64.b64decode(row["values"]), "<f4")
    for name in names or tinygen.names():
        model, want = tinygen.load(name), json.loads((tinygen.KIT / "expected" / f"{name}.json").read_text())
        with tempfile.TemporaryDirectory() as d:
            tinygen.write_checkpoint(model, pathlib.Path(d))
            rows = snug.all(d, want["ids"])
            at = [r["position"] for r in want["logits"]]
            report.close(f"{name} logits", rows[at], np.stack([unpack(r) for r in want["logits"]]))
            report.tokens(f"{name} all positions", rows, want["argmax"], want["top2_gap"])
            g = want["greedy"]
            again = snug.all(d, want["ids"][: g["prompt"]] + g["ids"][:-1])[g["prompt"] - 1 :]
            report.tokens(f"{name} greedy", again, g["ids"], g["top2_gap"])
            if routing and "routing" in want:
                r = want["routing"]
                got = snug.routing(d, want["ids"][: len(r["experts"])])
                report.experts(f"{name} experts", got, r["experts"], r["margin"], r["order_margin"])


def tiny(snug, report, model, expected):
    want = json.loads(pathlib.Path(expected).read_text())
    rows = snug.all(model, want["ids"])
    report.close("last logits", rows[-1], want["logits_last"])
    report.tokens("all positions", rows, want["argmax"], own_gaps(rows))
    g = want.get("greedy_from_20")
    if g:
        rows = snug.all(model, want["ids"][:20] + g[:-1])[19:]
        report.tokens("greedy", rows, g, own_gaps(rows))


def top8(snug, report, model, oracle):
    o = json.loads(pathlib.Path(oracle).read_text())
    for c in o["cases"]:
        what, n = repr(c.get("prompt", c["ids"][:5]))[:40], len(c["ids"])
        rows = snug.all(model, c["ids"] + c["greedy_ids"][:-1])[n - 1 :]
        report.close(f"{what} top 8", rows[0][c["top8_ids"]], c["top8_logits"])
        report.tokens(f"{what} greedy", rows, c["greedy_ids"], own_gaps(rows))
    if "nll" in o:
        ids = o["nll"]["ids"]
        rows = snug.all(model, ids)[:-1].astype(np.float64)
        nll = np.log(np.exp(rows - rows.max(-1, keepdims=True)).sum(-1)) + rows.max(-1)
        nll -= rows[np.arange(len(rows)), ids[1:]]
        report.close("mean NLL", nll.mean(), o["nll"]["mean_nll"])


def read_safetensors(path):
    """name -> array, for the dtypes a reference file has."""
    dtypes = {"F32": "<f4", "U8": "u1", "I32": "<i4", "I64": "<i8"}
    data = memoryview(pathlib.Path(path).read_bytes())
    (n,) = struct.unpack("<Q", data[:8])
    out = {}
    for name, t in json.loads(bytes(data[8 : 8 + n])).items():
        if name != "__metadata__":
            a, b = (8 + n + x for x in t["data_offsets"])
            out[name] = np.frombuffer(data[a:b], dtypes[t["dtype"]]).reshape(t["shape"])
    return out


def trained(snug, report, model, reference, routing):
    reference = pathlib.Path(reference)
    tensors = read_safetensors(reference / "reference.safetensors")
    for p in json.loads((reference / "reference.json").read_text())["prompts"]:
        key, ids, greedy = f"prompt{p['index']}", p["token_ids"], p["greedy32_token_ids"]
        n = len(ids)
        last4 = np.stack([snug.last(model, ids[:i]) for i in range(n - 3, n + 1)])
        report.close(f"{key} ({n} tokens) last 4 rows", last4, tensors[f"{key}.last4_logits"])
        made = snug.greedy(model, ids, len(greedy))
        report.line(made == greedy, f"{key} greedy: {sum(a == b for a, b in zip(made, greedy))} of {len(greedy)} tokens equal")
        if routing and f"{key}.expert_ids" in tensors:
            report.experts(f"{key} experts", snug.routing(model, ids), tensors[f"{key}.expert_ids"].astype(int),
                           tensors[f"{key}.expert_margin_p4_minus_p5"])


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("snug")
    a.add_argument("kind", choices=sorted(DEFAULT_TOL))
    a.add_argument("what", nargs="*")
    a.add_argument("--tol", type=float)
    a.add_argument("--routing", action="store_true")
    a.add_argument("--arg", action="append", default=[])
    a = a.parse_intermixed_args()
    if a.kind != "kit" and len(a.what) != 2:
        raise SystemExit(f"{a.kind} wants two paths: the model and the reference")
    snug, report = Snug(a.snug, a.arg), Report(a.tol or DEFAULT_TOL[a.kind])
    if a.kind == "kit":
        kit(snug, report, a.what, a.routing)
    elif a.kind == "trained":
        trained(snug, report, *a.what, a.routing)
    else:
        {"tiny": tiny, "top8": top8}[a.kind](snug, report, *a.what)
    print(f"{'FAILED' if report.failed else 'passed'}: {report.failed} wrong, largest logit difference "
          f"{report.worst:.2e}, tolerance {report.tol:g}")
    raise SystemExit(1 if report.failed else 0)


if __name__ == "__main__":
    main()
