"""The tiny models' weights in Python: the same generator as crates/testkit/src/generate.rs, bit for bit.

A model is described in crates/testkit/models/NAME.json; see the crate's documentation for the formula.
"""

import hashlib
import json
import pathlib
import struct

import numpy as np

KIT = pathlib.Path(__file__).resolve().parent.parent / "crates" / "testkit"
GOLDEN = 0x9E3779B97F4A7C15
M64 = (1 << 64) - 1


def fnv1a(data: bytes) -> int:
    h = 0xCBF29CE484222325
    for b in data:
        h = (h ^ b) * 0x100000001B3 & M64
    return h


def mix(z):
    """SplitMix64's finaliser over a uint64 array."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def bits(seed: int, name: str, n: int) -> np.ndarray:
    """n values of 24 bits."""
    key = mix(np.array([fnv1a(name.encode()) ^ (seed * GOLDEN & M64)], np.uint64))
    i = np.arange(1, n + 1, dtype=np.uint64)
    return mix(key + i * np.uint64(GOLDEN)) >> np.uint64(40)


def fill(seed: int, name: str, scale_log2: int, offset: float, n: int) -> np.ndarray:
    """n f32 values, uniform in offset + 2^scale_log2 * [-1, 1)."""
    u = (bits(seed, name, n).astype(np.int32) - np.int32(1 << 23)).astype(np.float32)
    return u * np.float32(2.0 ** (scale_log2 - 23)) + np.float32(offset)


def load(name: str) -> dict:
    return json.loads((KIT / "models" / f"{name}.json").read_text())


def names() -> list:
    return sorted(p.stem for p in (KIT / "models").glob("*.json"))


def tensors(model: dict) -> dict:
    """name -> f32 array, in file order; `{l}` and `{e}` of a template stand for its layers and experts."""
    out = {}
    for t in model["tensors"]:
        for l in t.get("layers", [0]):
            for e in range(t.get("experts", 1)):
                name = t["name"].replace("{l}", str(l)).replace("{e}", str(e))
                n = int(np.prod(t["shape"]))
                out[name] = fill(model["seed"], name, t["scale_log2"], t["offset"], n).reshape(t["shape"])
    return out


def safetensors_bytes(arrays: dict) -> bytes:
    """The file that testkit writes, byte for byte."""
    header, at = {}, 0
    for name, a in arrays.items():
        header[name] = {"dtype": "F32", "shape": list(a.shape), "data_offsets": [at, at + a.nbytes]}
        at += a.nbytes
    h = json.dumps(header, separators=(",", ":")).encode()
    h += b" " * (-len(h) % 8)
    return struct.pack("<Q", len(h)) + h + b"".join(a.astype("<f4").tobytes() for a in arrays.values())


def write_checkpoint(model: dict, directory: pathlib.Path) -> None:
    """config.json and model.safetensors."""
    (directory / "config.json").write_text(json.dumps(model["config"], indent=2) + "\n")
    (directory / "model.safetensors").write_bytes(safetensors_bytes(tensors(model)))


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
