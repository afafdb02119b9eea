//! The kernels' machine code, compiled ahead of time by `cargo xtask cuda` and kept compressed in the program.
//!
//! `"SNUGCUDA"`, the SHA-256 of the source, then per architecture and unit: two length-prefixed names, the size, the
//! compressed size, and that many bytes of deflate.

use crate::error::{Error, Result};
use std::io::Read;

static IMAGE: &[u8] = include_bytes!("kernels.bin");

/// One unit for one architecture.
struct Entry<'a> {
    arch: &'a str,
    unit: &'a str,
    size: usize,
    packed: &'a [u8],
}

fn entries(image: &[u8]) -> Vec<Entry<'_>> {
    let mut rest = image.get(40..).unwrap_or_default();
    let mut all = Vec::new();
    while let Some(e) = entry(&mut rest) {
        all.push(e);
    }
    all
}

fn entry<'a>(rest: &mut &'a [u8]) -> Option<Entry<'a>> {
    let mut take = |n: usize| {
        let (head, tail) = rest.split_at_checked(n)?;
        *rest = tail;
        Some(head)
    };
    let mut name = || {
        std::str::from_utf8({
            let n = take(1)?[0];
            take(n as usize)?
        })
        .ok()
    };
    let (arch, unit) = (name()?, name()?);
    let mut number = || take(4)?.try_into().ok().map(|b| u32::from_le_bytes(b) as usize);
    let (size, packed) = (number()?, number()?);
    Some(Entry { arch, unit, size, packed: take(packed)? })
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
    let all = entries(IMAGE);
    let best = all.iter().filter_map(|e| Some((suits(e.arch, capability)?, e.arch))).max();
    let (_, arch) = best.ok_or_else(|| {
        Error::NoCuda(format!("compute capability {}.{} is below 8.0", capability / 10, capability % 10))
    })?;
    let unpack = |e: &Entry| {
        let mut code = Vec::with_capacity(e.size);
        let read = flate2::read::DeflateDecoder::new(e.packed).read_to_end(&mut code);
        read.map(|_| (e.unit.to_string(), code)).map_err(|e| Error::Cuda { call: "unpack", what: e.to_string() })
    };
    let units = all.iter().filter(|e| e.arch == arch).map(unpack).collect::<Result<_>>()?;
    Ok((arch.to_string(), units))
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let (_, units) = code_for(90).unwrap();
        assert!(units.len() >= 7 && units.iter().all(|(_, code)| code.len() > 1000));
        assert_eq!(entries(IMAGE).len() % units.len(), 0);
    }
}
