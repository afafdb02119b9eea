//! Which instructions the kernels may use, decided once.

use crate::error::{Error, Result};

/// An instruction set the kernels exist for, weakest first.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Isa {
    /// Plain Rust.
    Scalar,
    /// AVX2, FMA and F16C.
    Avx2,
    /// AVX-512 F, BW, VL, DQ and VNNI, besides all of [`Isa::Avx2`].
    Avx512,
    /// Tiles of bytes (AMX), besides all of [`Isa::Avx512`].
    Amx,
}

impl Isa {
    /// All, weakest first.
    pub const ALL: [Isa; 4] = [Isa::Scalar, Isa::Avx2, Isa::Avx512, Isa::Amx];

    /// Name in `caps` and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Isa::Scalar => "scalar",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
            Isa::Amx => "amx",
        }
    }
    /// Whether this machine has it.
    pub fn available(self) -> bool {
        match self {
            Isa::Scalar => true,
            Isa::Avx2 => has_avx2(),
            Isa::Avx512 => has_avx2() && has_avx512(),
            Isa::Amx => has_avx2() && has_avx512() && has_amx(),
        }
    }
    /// The strongest this machine has.
    pub fn best() -> Isa {
        Isa::ALL.into_iter().rev().find(|i| i.available()).unwrap_or(Isa::Scalar)
    }
    /// `asked`, or the best where nothing was asked for.
    ///
    /// # Errors
    /// [`Error::NoIsa`] when this machine does not have it.
    pub fn choose(asked: Option<Isa>) -> Result<Isa> {
        match asked {
            Some(isa) if !isa.available() => Err(Error::NoIsa { asked: isa.name(), have: Isa::best().name() }),
            Some(isa) => Ok(isa),
            None => Ok(Isa::best()),
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
}

#[cfg(target_arch = "x86_64")]
fn has_avx512() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vnni")
}

#[cfg(target_arch = "x86_64")]
fn has_amx() -> bool {
    super::mat::amx::available()
}

#[cfg(not(target_arch = "x86_64"))]
fn has_amx() -> bool {
    false
}

#[cfg(not(target_arch = "x86_64"))]
fn has_avx2() -> bool {
    false
}

#[cfg(not(target_arch = "x86_64"))]
fn has_avx512() -> bool {
    false
}

/// Whether BF16 dot products exist: more than [`Isa::Avx512`] promises, so it is asked separately.
pub fn has_bf16() -> bool {
    #[cfg(target_arch = "x86_64")]
    return has_avx512() && is_x86_feature_detected!("avx512bf16");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_refused_and_the_rest_is_ordered() {
        assert!(Isa::ALL.is_sorted());
        for isa in Isa::ALL {
            assert_eq!(Isa::choose(Some(isa)).is_ok(), isa <= Isa::best());
        }
        assert_eq!(Isa::choose(None).ok(), Some(Isa::best()));
    }
}
