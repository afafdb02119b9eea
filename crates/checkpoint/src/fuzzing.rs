//! Entry points for fuzzers: any bytes may come in, and nothing may panic. Not part of the public interface.

use crate::{ByteRange, Checkpoint, Result, Source, Value};

/// Opens the bytes as whatever they claim to be and touches everything there is.
pub fn open_all(bytes: &[u8]) {
    if let Ok(c) = Checkpoint::open(Source::Bytes(bytes.into())) {
        touch_meta(&c);
        touch_tensors(&c);
        touch_matrices(&c);
    }
}

/// As [`open_all`], with the GGUF magic in place, so that no input is wasted on it.
pub fn gguf(bytes: &[u8]) {
    open_all(&[b"GGUF", bytes].concat());
}

/// As [`open_all`], with a matching header length in front of the first `{...}`, so that inputs reach the JSON.
pub fn safetensors(bytes: &[u8]) {
    let n = bytes.iter().rposition(|b| *b == b'}').map_or(bytes.len(), |i| i + 1);
    open_all(&[&(n as u64).to_le_bytes(), bytes].concat());
}

/// A safetensors file beside a `config.json`: the logical matrices they make together.
pub fn matrices(config: &[u8], bytes: &[u8]) {
    let Ok(c) = Checkpoint::open(Source::Bytes(bytes.into())) else { return };
    let config = serde_json::from_slice(config).ok();
    touch_matrices(&c.with_config(config.as_ref()));
}

fn touch_matrices(c: &Checkpoint) {
    for m in c.matrices() {
        let (n, k, format) = (m.n(), m.k(), m.format);
        let _ = (format.bits(), format.bytes(n, k), format.to_string(), m.bytes());
        if n == 0 || k == 0 || k > 4096 {
            continue;
        }
        let last = m.count().saturating_sub(1);
        let behind = |i: usize| {
            let at = m.planes[i].as_ref()?.at;
            let by = m.step(i).saturating_mul(last).min(at.len);
            Some(ByteRange { off: at.off + by, len: at.len - by, ..at })
        };
        let planes = [behind(0), behind(1), behind(2), behind(3)];
        for row in [0, n - 1] {
            let _ = c.read_rows(format, planes, row, k as usize, &mut vec![0.0; k as usize]);
        }
    }
    for t in c.tensors() {
        let base = t.name.rsplit_once('.').map_or(&*t.name, |(base, _)| base);
        let _ = (c.matrix(base), c.matrix(&format!("{base}.weight")));
    }
}

fn touch_meta(c: &Checkpoint) {
    let m = c.meta();
    for (key, value) in m.entries() {
        let _ = value.to_string();
        if let Value::Array(a) = value {
            a.iter().for_each(drop);
        }
        let _ = (m.u32(key), m.u64(key), m.f32(key), m.bool(key), m.str(key), m.strs(key));
        let _ = (m.u32s(key), m.i32s(key), m.f32s(key), m.bools(key), m.u32_per_layer(key, 3));
    }
    let _ = (m.chat_template(), m.config(), m.container());
}

fn touch_tensors(c: &Checkpoint) {
    for t in c.tensors() {
        let _: Result<()> = c.usable(t);
        for first in [0, 1, u64::MAX] {
            let Ok(r) = t.slice0(first, 1) else { continue };
            let mut dst = vec![0; r.len.min(4096) as usize];
            let _ = c.read_at(crate::ByteRange { len: dst.len() as u64, ..r }, &mut dst);
        }
        let last = t.shape.last().copied().unwrap_or(1);
        if last <= 4096 && !t.shape.is_empty() && t.shape.len() > 1 {
            let inner: u64 = t.shape[1..].iter().product();
            if inner <= 4096 {
                let _ = c.read_f32(t, 0, 1, &mut vec![0.0; inner as usize]);
            }
        }
    }
}
