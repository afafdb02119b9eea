"""Vectors for weight formats, from the libraries that define them: random blocks and the values they stand for.

    python scripts/format_vectors.py crates/checkpoint/tests/fixtures/quant_vectors.json

Needs gguf (block formats). With mlx (affine, mxfp4, nvfp4) those are made anew too; without it what is in the file stays.
"""

import json
import sys

import numpy as np
from gguf import GGML_QUANT_SIZES
from gguf import GGMLQuantizationType as Type
from gguf.quants import dequantize

E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6]
# Where the f16 numbers of a block are, so that they can be given sensible sizes.
HALVES = {
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108],
    "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ3_S": [0], "IQ4_NL": [0], "IQ4_XS": [0], "MXFP4": [], "NVFP4": [],
}  # fmt: skip


def digits(values):
    return [float(f"{x:.9g}") for x in np.asarray(values, np.float32).ravel()]


def blocks(name, rng):
    elems, size = GGML_QUANT_SIZES[Type[name]]
    raw = rng.integers(0, 256, (2, size), dtype=np.uint8)
    for block in raw:
        for at in HALVES[name]:
            half = np.float16(rng.uniform(0.001, 0.1))
            block[at : at + 2] = np.frombuffer(half.tobytes(), np.uint8)
        if name == "MXFP4":
            block[0] = rng.integers(118, 130)
        if name == "NVFP4":
            block[:4] = rng.integers(0, 120, 4)
    values = dequantize(raw, Type[name])
    return dict(block=elems, bytes=size, hex=[bytes(b).hex() for b in raw], values=[digits(v) for v in values])


def mlx():
    """Two rows of 64 in MLX's modes: packed words, scales (and biases), values."""
    import mlx.core as mx

    rng = np.random.default_rng(3)
    w = mx.array(rng.normal(size=(2, 64)).astype(np.float32))
    out = {}
    for bits in (2, 3, 4, 5, 6, 8):
        q, s, b = mx.quantize(w, group_size=64, bits=bits)
        y = mx.dequantize(q, s, b, group_size=64, bits=bits)
        out[f"MLX_affine{bits}_g64"] = dict(
            packed=np.array(q).tolist(), scales=np.array(s).tolist(), biases=np.array(b).tolist(), values=np.array(y).tolist()
        )
    for mode, group in (("mxfp4", 32), ("nvfp4", 16)):
        q, s = mx.quantize(w, group_size=group, bits=4, mode=mode)[:2]
        y = mx.dequantize(q, s, group_size=group, bits=4, mode=mode).astype(mx.float32)
        out[f"MLX_{mode}"] = dict(
            packed=np.array(q).tolist(), scales=np.array(s).tolist(), values=[digits(r) for r in np.array(y)]
        )
    return out


def main(path):
    with open(path) as f:
        out = json.load(f)
    for i, name in enumerate(HALVES):
        if name not in out:
            out[name] = blocks(name, np.random.default_rng(100 + i))
    if "HF_MXFP4" not in out:
        raw = np.random.default_rng(99).integers(0, 256, 16, dtype=np.uint8)
        values = [E2M1[n] * 2.0**-2 for x in raw for n in (int(x) & 15, int(x) >> 4)]
        out["HF_MXFP4"] = dict(scale_byte=125, hex=bytes(raw).hex(), values=values)
    try:
        out |= mlx()
    except ImportError:
        print("mlx is not installed: its vectors stay as they are")
    with open(path, "w") as f:
        json.dump(out, f, separators=(",", ":"))


main(*sys.argv[1:])
