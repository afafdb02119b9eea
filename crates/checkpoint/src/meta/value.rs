//! GGUF metadata values. They stay encoded as in the file and are decoded when asked for, so that a vocabulary of hundreds of thousands of strings costs
//! nothing to open and is copied to another file byte for byte.

use std::fmt;
use std::ops::Range;

use crate::source::Bytes;

/// Type of a metadata value, with the ids of the GGUF specification.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the names say it")]
#[repr(u32)]
pub enum Kind {
    U8 = 0,
    I8 = 1,
    U16 = 2,
    I16 = 3,
    U32 = 4,
    I32 = 5,
    F32 = 6,
    Bool = 7,
    Str = 8,
    Array = 9,
    U64 = 10,
    I64 = 11,
    F64 = 12,
}

impl Kind {
    const ALL: [Self; 13] = [
        Self::U8,
        Self::I8,
        Self::U16,
        Self::I16,
        Self::U32,
        Self::I32,
        Self::F32,
        Self::Bool,
        Self::Str,
        Self::Array,
        Self::U64,
        Self::I64,
        Self::F64,
    ];

    pub(crate) fn of_id(id: u32) -> Option<Self> {
        Self::ALL.get(id as usize).copied()
    }

    /// Bytes of a number or bool; `None` for strings and arrays.
    pub(crate) fn size(self) -> Option<usize> {
        match self {
            Self::U8 | Self::I8 | Self::Bool => Some(1),
            Self::U16 | Self::I16 => Some(2),
            Self::U32 | Self::I32 | Self::F32 => Some(4),
            Self::U64 | Self::I64 | Self::F64 => Some(8),
            Self::Str | Self::Array => None,
        }
    }

    /// Name as in messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::U8 => "u8",
            Self::I8 => "i8",
            Self::U16 => "u16",
            Self::I16 => "i16",
            Self::U32 => "u32",
            Self::I32 => "i32",
            Self::F32 => "f32",
            Self::Bool => "a bool",
            Self::Str => "a string",
            Self::Array => "an array",
            Self::U64 => "u64",
            Self::I64 => "i64",
            Self::F64 => "f64",
        }
    }
}

/// An encoded value. Its structure was checked when it was parsed or built: lengths are right, bools are 0 or 1. Strings may still not be UTF-8.
#[derive(Clone, Debug)]
pub(crate) struct Encoded {
    pub(crate) kind: Kind,
    bytes: Bytes,
    at: Range<usize>,
}

impl Encoded {
    pub(crate) fn new(kind: Kind, bytes: Bytes, at: Range<usize>) -> Self {
        Self { kind, bytes, at }
    }

    pub(crate) fn of(value: &(impl ToMeta + ?Sized)) -> Self {
        let mut b = Vec::new();
        value.put(&mut b);
        let at = 0..b.len();
        Self { kind: value.kind(), bytes: Bytes::Shared(b.into()), at }
    }

    /// The value as in the file, without its type.
    pub(crate) fn raw(&self) -> &[u8] {
        self.bytes.as_slice().get(self.at.clone()).unwrap_or_default()
    }

    pub(crate) fn value(&self) -> Value<'_> {
        Value::of(self.kind, self.raw())
    }
}

/// A decoded metadata value.
#[derive(Copy, Clone, PartialEq, Debug)]
pub enum Value<'a> {
    /// Any unsigned integer.
    Unsigned(u64),
    /// Any signed integer.
    Signed(i64),
    /// f32 or f64.
    Float(f64),
    /// True or false.
    Bool(bool),
    /// A string; as bytes, because files with other than UTF-8 exist.
    Str(&'a [u8]),
    /// An array.
    Array(Array<'a>),
}

impl<'a> Value<'a> {
    fn of(kind: Kind, raw: &'a [u8]) -> Self {
        match kind {
            Kind::Str => Self::Str(raw.get(8..).unwrap_or_default()),
            Kind::Array => Self::Array(Array::of(raw)),
            _ => number(kind, raw),
        }
    }
}

/// A number at the start of `raw` (missing bytes count as zero; the parser leaves none missing).
fn number<'a>(kind: Kind, raw: &[u8]) -> Value<'a> {
    let mut b = [0; 8];
    let n = kind.size().unwrap_or(0).min(raw.len());
    b[..n].copy_from_slice(&raw[..n]);
    let bits = u64::from_le_bytes(b);
    match kind {
        Kind::I8 => Value::Signed(i64::from(bits as i8)),
        Kind::I16 => Value::Signed(i64::from(bits as i16)),
        Kind::I32 => Value::Signed(i64::from(bits as i32)),
        Kind::I64 => Value::Signed(bits as i64),
        Kind::F32 => Value::Float(f64::from(f32::from_bits(bits as u32))),
        Kind::F64 => Value::Float(f64::from_bits(bits)),
        Kind::Bool => Value::Bool(bits != 0),
        _ => Value::Unsigned(bits),
    }
}

/// An array of one kind of values.
#[derive(Copy, Clone, PartialEq)]
pub struct Array<'a> {
    /// Kind of the elements.
    pub kind: Kind,
    /// Number of elements.
    pub len: usize,
    raw: &'a [u8],
}

impl<'a> Array<'a> {
    /// From the encoded form: u32 kind, u64 count, elements.
    fn of(raw: &'a [u8]) -> Self {
        let kind = raw.first_chunk().and_then(|b| Kind::of_id(u32::from_le_bytes(*b))).unwrap_or(Kind::U8);
        let len = raw.get(4..).and_then(|r| r.first_chunk()).map_or(0, |b| u64::from_le_bytes(*b) as usize);
        Self { kind, len, raw: raw.get(12..).unwrap_or_default() }
    }

    /// The elements in order. Elements of arrays in arrays are not decoded.
    pub fn iter(self) -> impl Iterator<Item = Value<'a>> {
        let mut rest = self.raw;
        let n = if self.kind == Kind::Array { 0 } else { self.len };
        (0..n).map_while(move |_| {
            let size = match self.kind.size() {
                Some(n) => n,
                None => 8 + u64::from_le_bytes(*rest.first_chunk()?) as usize,
            };
            let (one, more) = rest.split_at_checked(size)?;
            rest = more;
            Some(Value::of(self.kind, one))
        })
    }
}

impl fmt::Debug for Array<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}; {}]", self.kind.name(), self.len)
    }
}

impl fmt::Display for Value<'_> {
    /// Short: long strings and arrays are cut.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsigned(x) => write!(f, "{x}"),
            Self::Signed(x) => write!(f, "{x}"),
            Self::Float(x) => write!(f, "{x}"),
            Self::Bool(x) => write!(f, "{x}"),
            Self::Str(s) => {
                let s = String::from_utf8_lossy(&s[..s.len().min(200)]);
                let short: String = s.chars().take(60).collect();
                write!(f, "{short:?}{}", if short.len() < s.len() { "..." } else { "" })
            }
            Self::Array(a) => {
                f.write_str("[")?;
                for (i, v) in a.iter().take(8).enumerate() {
                    write!(f, "{}{v}", if i > 0 { ", " } else { "" })?;
                }
                if a.len > 8 || a.kind == Kind::Array {
                    write!(f, ", ... {} in all", a.len)?;
                }
                f.write_str("]")
            }
        }
    }
}

/// What can be stored as a metadata value.
pub trait ToMeta {
    /// Type in the file.
    fn kind(&self) -> Kind;
    /// Type of the elements when stored in an array, also for an empty one.
    fn item_kind() -> Kind;
    /// Appends the encoded value.
    fn put(&self, out: &mut Vec<u8>);
}

macro_rules! scalars {
    ($($t:ty => $k:ident),*) => { $(
        impl ToMeta for $t {
            fn kind(&self) -> Kind { Kind::$k }
            fn item_kind() -> Kind { Kind::$k }
            fn put(&self, out: &mut Vec<u8>) { out.extend(self.to_le_bytes()) }
        }
    )* };
}
scalars!(u8 => U8, i8 => I8, u16 => U16, i16 => I16, u32 => U32, i32 => I32, f32 => F32, u64 => U64, i64 => I64, f64 => F64);

impl ToMeta for bool {
    fn kind(&self) -> Kind {
        Kind::Bool
    }
    fn item_kind() -> Kind {
        Kind::Bool
    }
    fn put(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }
}

impl ToMeta for str {
    fn kind(&self) -> Kind {
        Kind::Str
    }
    fn item_kind() -> Kind {
        Kind::Str
    }
    fn put(&self, out: &mut Vec<u8>) {
        out.extend((self.len() as u64).to_le_bytes());
        out.extend(self.as_bytes());
    }
}

impl ToMeta for String {
    fn kind(&self) -> Kind {
        Kind::Str
    }
    fn item_kind() -> Kind {
        Kind::Str
    }
    fn put(&self, out: &mut Vec<u8>) {
        self.as_str().put(out);
    }
}

impl<T: ToMeta> ToMeta for [T] {
    fn kind(&self) -> Kind {
        Kind::Array
    }
    fn item_kind() -> Kind {
        Kind::Array
    }
    fn put(&self, out: &mut Vec<u8>) {
        out.extend((T::item_kind() as u32).to_le_bytes());
        out.extend((self.len() as u64).to_le_bytes());
        for x in self {
            x.put(out);
        }
    }
}

impl<T: ToMeta> ToMeta for Vec<T> {
    fn kind(&self) -> Kind {
        Kind::Array
    }
    fn item_kind() -> Kind {
        Kind::Array
    }
    fn put(&self, out: &mut Vec<u8>) {
        self.as_slice().put(out);
    }
}

impl<T: ToMeta, const N: usize> ToMeta for [T; N] {
    fn kind(&self) -> Kind {
        Kind::Array
    }
    fn item_kind() -> Kind {
        Kind::Array
    }
    fn put(&self, out: &mut Vec<u8>) {
        self.as_slice().put(out);
    }
}

impl<T: ToMeta + ?Sized> ToMeta for &T {
    fn kind(&self) -> Kind {
        (**self).kind()
    }
    fn item_kind() -> Kind {
        T::item_kind()
    }
    fn put(&self, out: &mut Vec<u8>) {
        (**self).put(out);
    }
}
