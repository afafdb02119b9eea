//! Element formats of key/value pages.

use std::str::FromStr;

/// How the vectors of a stream are stored. Every vector is encoded when it is appended.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum KvFormat {
    /// 4 bytes an element: chosen when the weights are f32.
    F32,
    /// 2 bytes an element, rounded to nearest even.
    Bf16,
    /// Rotated; one byte an element and one scale a vector.
    Q8,
    /// Rotated; a nibble an element (16 centroids) and one norm a vector.
    Tq4,
}

impl KvFormat {
    /// All, widest first.
    pub const ALL: [KvFormat; 4] = [KvFormat::F32, KvFormat::Bf16, KvFormat::Q8, KvFormat::Tq4];
    /// Widths that the rotated formats can have: powers of two with a table of centroids.
    pub const ROTATED_WIDTHS: [u32; 4] = [64, 128, 256, 512];

    /// The word for it in flags and reports.
    pub const fn name(self) -> &'static str {
        match self {
            KvFormat::F32 => "f32",
            KvFormat::Bf16 => "bf16",
            KvFormat::Q8 => "q8",
            KvFormat::Tq4 => "tq4",
        }
    }
    /// The format of that [`name`](Self::name).
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|f| f.name() == name)
    }
    /// Whether vectors are stored rotated, as codes and a scale.
    pub const fn rotated(self) -> bool {
        matches!(self, KvFormat::Q8 | KvFormat::Tq4)
    }
    /// Whether vectors of width `d` can be stored in it.
    pub fn fits(self, d: u32) -> bool {
        !self.rotated() || Self::ROTATED_WIDTHS.contains(&d)
    }
    /// Bytes of the elements of one stored vector of width `d`, without its scale.
    pub const fn code_bytes(self, d: u32) -> u64 {
        match self {
            KvFormat::F32 => d as u64 * 4,
            KvFormat::Bf16 => d as u64 * 2,
            KvFormat::Q8 => d as u64,
            KvFormat::Tq4 => d as u64 / 2,
        }
    }
    /// Bytes of the scale of one stored vector: an f16, or nothing.
    pub const fn scale_bytes(self) -> u64 {
        if self.rotated() { 2 } else { 0 }
    }
    /// Bytes of one stored vector of width `d`.
    pub const fn vector_bytes(self, d: u32) -> u64 {
        self.code_bytes(d) + self.scale_bytes()
    }
}

/// The formats of one layer's history. Which of them a position is read in depends on its page and on the page of the
/// row that reads it, so it does not depend on how rows were cut into calls.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub struct KvSpec {
    /// Format of ordinary pages.
    pub main: KvFormat,
    /// A row reads the page it lies in (of 256 positions) in this format, which is not rotated.
    pub own_page: Option<KvFormat>,
    /// Page 0 is read in this format, which is not rotated.
    pub sink_page: Option<KvFormat>,
}

impl KvSpec {
    /// One format for everything.
    pub const fn of(main: KvFormat) -> Self {
        KvSpec { main, own_page: None, sink_page: None }
    }
    /// Formats of the pages beside the ordinary ones.
    pub fn beside(&self) -> impl Iterator<Item = KvFormat> {
        [self.own_page, self.sink_page].into_iter().flatten()
    }
    /// As flags and reports write it: `tq4`, `tq4+own-page`, `tq4+own-page+sink-page`.
    pub fn describe(&self) -> String {
        let own = if self.own_page.is_some() { "+own-page" } else { "" };
        let sink = if self.sink_page.is_some() { "+sink-page" } else { "" };
        format!("{}{own}{sink}", self.main.name())
    }
}

/// Text that names no formats.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{0}' is not a format of history: f32, bf16, q8 or tq4, and behind q8 or tq4 also +own-page and +sink-page, such as \
     tq4+own-page"
)]
pub struct NoFormat(String);

impl FromStr for KvSpec {
    type Err = NoFormat;
    /// Reads what [`describe`](Self::describe) writes; pages beside the ordinary ones are bf16.
    fn from_str(s: &str) -> Result<Self, NoFormat> {
        let fail = || NoFormat(s.to_string());
        let mut words = s.split('+');
        let main = words.next().and_then(KvFormat::named).ok_or_else(fail)?;
        let mut spec = KvSpec::of(main);
        for word in words.filter(|_| main.rotated()) {
            match word {
                "own-page" => spec.own_page = Some(KvFormat::Bf16),
                "sink-page" => spec.sink_page = Some(KvFormat::Bf16),
                _ => return Err(fail()),
            }
        }
        if main.rotated() || !s.contains('+') { Ok(spec) } else { Err(fail()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vector_of_256_takes_130_bytes_in_four_bits() {
        let bytes = |d| KvFormat::ALL.map(|f| f.vector_bytes(d));
        assert_eq!(bytes(256), [1024, 512, 258, 130]);
        assert_eq!(bytes(64), [256, 128, 66, 34]);
    }

    #[test]
    fn names_are_read_back() {
        for f in KvFormat::ALL {
            assert_eq!(KvFormat::named(f.name()), Some(f));
        }
        assert_eq!(KvFormat::named("q4"), None);
        for text in ["f32", "bf16", "q8", "tq4", "tq4+own-page", "q8+sink-page", "tq4+own-page+sink-page"] {
            assert_eq!(text.parse::<KvSpec>().unwrap().describe(), text);
        }
        for text in ["", "q4", "tq4+", "tq4+own", "bf16+own-page", "tq4 + own-page"] {
            assert!(text.parse::<KvSpec>().unwrap_err().to_string().contains(&format!("'{text}'")));
        }
        assert!(KvFormat::Bf16.fits(80) && !KvFormat::Tq4.fits(80) && KvFormat::Q8.fits(128));
    }
}
