//! The kernels' machine code, compiled ahead of time by `cargo xtask cuda` and kept compressed in the program.
//!
//! `"SNUGCUDA"`, the SHA-256 of the source, then streams. Of each: how many units it has; of each unit the architecture and the
//! name, length-prefixed, and the size of its code; the compressed size, and that many bytes of LZMA, which hold the code of
//! all units one behind the other. Architectures that resemble each other share a stream.

use crate::error::{Error, Result};
use std::io::Read;

static IMAGE: &[u8] = include_bytes!("kernels.bin");

/// One unit for one architecture.
struct Entry<'a> {
    arch: &'a str,
    unit: &'a str,
    size: usize,
}

/// Units whose code is compressed together.
struct Stream<'a> {
    entries: Vec<Entry<'a>>,
    packed: &'a [u8],
}

fn streams(image: &[u8]) -> Vec<Stream<'_>> {
    let mut rest = image.get(40..).unwrap_or_default();
    std::iter::from_fn(|| stream(&mut rest)).collect()
}

fn stream<'a>(rest: &mut &'a [u8]) -> Option<Stream<'a>> {
    let count = number(rest)?;
    let entries = (0..count).map(|_| Some(Entry { arch: name(rest)?, unit: name(rest)?, size: number(rest)? }));
    let entries = entries.collect::<Option<Vec<_>>>()?;
    let len = number(rest)?;
    Some(Stream { entries, packed: take(rest, len)? })
}

fn take<'a>(rest: &mut &'a [u8], n: usize) -> Option<&'a [u8]> {
    let (head, tail) = rest.split_at_checked(n)?;
    *rest = tail;
    Some(head)
}

fn name<'a>(rest: &mut &'a [u8]) -> Option<&'a str> {
    let n = take(rest, 1)?[0];
    std::str::from_utf8(take(rest, n as usize)?).ok()
}

fn number(rest: &mut &[u8]) -> Option<usize> {
    take(rest, 4)?.try_into().ok().map(|b| u32::from_le_bytes(b) as usize)
}

/// How well code for `arch` suits a card of this capability: machine code runs within its major version from its own minor
/// version on; PTX is compiled by the driver for anything newer.
fn suits(arch: &str, capability: u32) -> Option<u32> {
    let (kind, number) = arch.split_once('_')?;
    let number: u32 = number.parse().ok()?;
    match kind {
        "sm" => (number / 10 == capability / 10 && number <= capability).then_some(1000 + number),
        _ => (number <= capability).then_some(number),
    }
}

/// A unit's name and its code.
pub type Unit = (String, Vec<u8>);

/// The code of every unit that suits a card best, by name of unit, and the architecture it is for.
///
/// # Errors
/// [`Error::NoCuda`] when the card is older than all of them.
pub fn code_for(capability: u32) -> Result<(String, Vec<Unit>)> {
    let all = streams(IMAGE);
    let archs = all.iter().flat_map(|s| s.entries.iter().map(move |e| (e.arch, s)));
    let best = archs.filter_map(|(a, s)| Some((suits(a, capability)?, a, s))).max_by_key(|(fits, ..)| *fits);
    let (_, arch, stream) = best.ok_or_else(|| {
        Error::NoCuda(format!("compute capability {}.{} is below 8.0", capability / 10, capability % 10))
    })?;
    let broken = |what: String| Error::Cuda { call: "unpack", what };
    let unpacked = lzma_rust2::LzmaReader::new_mem_limit(stream.packed, u32::MAX, None);
    let mut unpacked = unpacked.map_err(|e| broken(e.to_string()))?;
    let mut units = Vec::new();
    // What lies behind a card's own code is not unpacked.
    let last = stream.entries.iter().rposition(|e| e.arch == arch).map_or(0, |i| i + 1);
    for e in &stream.entries[..last] {
        let mut code = vec![0; e.size];
        unpacked.read_exact(&mut code).map_err(|e| broken(e.to_string()))?;
        if e.arch == arch {
            units.push((e.unit.to_string(), code));
        }
    }
    Ok((arch.to_string(), units))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_card_gets_the_newest_code_it_can_run() {
        let best = |capability| {
            let archs = ["sm_80", "sm_86", "sm_89", "sm_90", "sm_120", "compute_80"];
            archs.into_iter().filter_map(|a| Some((suits(a, capability)?, a))).max().map(|(_, a)| a)
        };
        assert_eq!(best(75), None);
        assert_eq!(best(80), Some("sm_80"));
        assert_eq!(best(87), Some("sm_86"));
        assert_eq!(best(89), Some("sm_89"));
        assert_eq!(best(90), Some("sm_90"));
        assert_eq!(best(100), Some("compute_80"));
        assert_eq!(best(121), Some("sm_120"));
    }

    #[test]
    fn the_program_has_every_unit_for_every_architecture() {
        let archs: BTreeSet<&str> = streams(IMAGE).iter().flat_map(|s| s.entries.iter().map(|e| e.arch)).collect();
        assert!(archs.contains("sm_80") && archs.contains("sm_90") && archs.contains("compute_80"), "{archs:?}");
        let names = |capability| -> Vec<String> {
            let (_, units) = code_for(capability).unwrap();
            assert!(units.iter().all(|(_, code)| code.len() > 1000));
            units.into_iter().map(|(name, _)| name).collect()
        };
        let all = names(90);
        assert!(all.len() >= 9);
        // Some were tried on 9.0 alone.
        let own = ["stream", "normed", "chosen", "gated", "heads"];
        let others: Vec<String> = all.into_iter().filter(|u| !own.contains(&u.as_str())).collect();
        for capability in [80, 86, 89, 100, 120] {
            assert_eq!(names(capability), others, "{capability}");
        }
        assert!(matches!(code_for(75), Err(Error::NoCuda(_))));
    }
}
