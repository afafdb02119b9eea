//! Handles to memory: [`Buf`] names bytes, [`View`] gives them shape, [`Mat`] makes them a weight matrix.
//! None of them is a pointer; only a backend can turn one into an address.

use checkpoint::Format;

/// An allocation of a device. Ids are never reused while the allocation lives.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub struct AllocId(pub u32);

/// Bytes `off .. off + len` of an allocation.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Buf {
    pub(crate) alloc: AllocId,
    pub(crate) off: u64,
    pub(crate) len: u64,
    /// Number of the arena scope that owns the bytes, 0 outside arenas. A view that outlived its scope is refused.
    pub(crate) scope: u64,
}

impl Buf {
    /// A handle to a whole allocation of `len` bytes.
    pub fn whole(alloc: AllocId, len: u64) -> Self {
        Buf { alloc, off: 0, len, scope: 0 }
    }
    /// Bytes named.
    pub fn bytes(&self) -> u64 {
        self.len
    }
    /// The bytes `off .. off + len` of this buffer, or `None` when they are not all inside it.
    pub fn slice(&self, off: u64, len: u64) -> Option<Buf> {
        let end = off.checked_add(len)?;
        (end <= self.len).then(|| Buf { off: self.off + off, len, ..*self })
    }
}

/// Element types of activations and of the small integers that steer a step.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum Act {
    /// 4-byte float.
    F32,
    /// 4-byte signed integer.
    I32,
}

impl Act {
    /// Bytes of one element.
    pub const fn bytes(self) -> u64 {
        4
    }
}

/// A strided array `[rows, heads, cols]` whose columns are contiguous.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct View {
    /// The bytes.
    pub buf: Buf,
    /// Element type.
    pub ty: Act,
    /// Slowest dimension.
    pub rows: u32,
    /// Middle dimension, 1 for a matrix.
    pub heads: u32,
    /// Fastest dimension, contiguous.
    pub cols: u32,
    /// Elements from row to row and from head to head.
    pub stride: [u32; 2],
}

impl View {
    /// A dense `[rows, cols]` at the start of `buf`.
    pub fn dense(buf: Buf, ty: Act, rows: u32, cols: u32) -> Self {
        View { buf, ty, rows, heads: 1, cols, stride: [cols, cols] }
    }
    /// Elements of one row.
    pub fn width(&self) -> u32 {
        self.heads * self.cols
    }
    /// Rows `first .. first + n`. Rows beyond the end make the view fail its bounds check.
    pub fn rows(self, first: u32, n: u32) -> Self {
        self.shift(first as u64 * self.stride[0] as u64, View { rows: n, ..self })
    }
    /// `[rows, heads * d]` seen as `[rows, heads, d]`.
    pub fn heads(self, heads: u32) -> Self {
        let d = self.width() / heads.max(1);
        View { heads, cols: d, stride: [self.stride[0], d], ..self }
    }
    /// `[rows, heads, d]` with dense heads seen as `[rows, heads * d]`.
    pub fn flat(self) -> Self {
        View { heads: 1, cols: self.width(), stride: [self.stride[0], self.width()], ..self }
    }
    /// Columns `first .. first + n` of every head.
    pub fn cols(self, first: u32, n: u32) -> Self {
        self.shift(first as u64, View { cols: n, ..self })
    }
    /// Every head's columns cut in two after `d`.
    pub fn split(self, d: u32) -> (Self, Self) {
        (self.cols(0, d), self.cols(d, self.cols.saturating_sub(d)))
    }
    fn shift(self, elems: u64, to: View) -> Self {
        let by = (elems * self.ty.bytes()).min(self.buf.len);
        View { buf: Buf { off: self.buf.off + by, len: self.buf.len - by, ..self.buf }, ..to }
    }
    /// Elements from the first to just behind the last.
    pub fn extent(&self) -> u64 {
        if self.rows == 0 || self.heads == 0 || self.cols == 0 {
            return 0;
        }
        (self.rows as u64 - 1) * self.stride[0] as u64
            + (self.heads as u64 - 1) * self.stride[1] as u64
            + self.cols as u64
    }
    /// Whether all elements lie inside the buffer.
    pub fn fits(&self) -> bool {
        self.extent().checked_mul(self.ty.bytes()).is_some_and(|b| b <= self.buf.len)
    }
    /// Whether rows follow one another without gaps.
    pub fn is_dense(&self) -> bool {
        (self.rows <= 1 || self.stride[0] == self.width()) && (self.heads <= 1 || self.stride[1] == self.cols)
    }
}

/// How the planes of a matrix lie in memory.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum Layout {
    /// As in the file: rows of blocks one behind the other, at any alignment.
    File,
    /// Codes, high bits and scales in planes of their own: see [`crate::split`].
    Split,
    /// Sixteen rows as one, rows behind the last sixteen as in the file: see [`crate::interleave`].
    Interleaved,
}

/// A weight matrix `[n, k]`: `n` outputs, `k` inputs. Any file offset is legal.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Mat {
    /// Output features.
    pub n: u32,
    /// Input features.
    pub k: u32,
    /// Format of the elements.
    pub fmt: Format,
    /// Arrangement of the bytes.
    pub layout: Layout,
    /// Stored rows from row to row: 1, or 2 where two matrices lie row by row in turn (the second one's planes begin one
    /// stored row later).
    pub row_step: u32,
    /// Codes, scales, mins or zeros, global scale: as many as the format has.
    pub planes: [Option<Buf>; 4],
}

impl Mat {
    /// Rows `first .. first + n` as a matrix, `None` when a plane ends before them. The planes keep what lies behind, so a
    /// [`MatSet`] may step from there. Interleaved rows are not cut apart.
    pub fn rows(&self, first: u32, n: u32) -> Option<Mat> {
        let each = match self.layout {
            Layout::Interleaved => return None,
            Layout::File => [crate::op::row_bytes(self)?, 0, 0],
            Layout::Split => crate::split::row_parts(&self.fmt, self.k)?,
        };
        let mut m = Mat { n, ..*self };
        for (plane, each) in m.planes.iter_mut().zip(each) {
            if let Some(b) = plane {
                let off = first as u64 * each;
                *b = b.slice(off, b.len.checked_sub(off)?)?;
            }
        }
        Some(m)
    }
}

/// The same matrix of several experts, slot by slot.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct MatSet {
    /// The matrix in slot 0.
    pub first: Mat,
    /// Bytes from slot to slot, per plane.
    pub step: [u64; 4],
    /// Slots there are.
    pub slots: u32,
}

impl MatSet {
    /// The matrix in slot `s`, or `None` beyond the last.
    pub fn slot(&self, s: u32) -> Option<Mat> {
        if s >= self.slots {
            return None;
        }
        let mut m = self.first;
        for (p, step) in m.planes.iter_mut().zip(self.step) {
            if let Some(b) = p {
                b.off += s as u64 * step;
            }
        }
        Some(m)
    }
    /// The matrix that lies at `place` in slot `s`, or `None` where there is no room for one.
    pub fn placed(&self, s: u32, (begin, interleaved): Place) -> Option<Mat> {
        let m = self.slot(s)?.moved(begin)?;
        Some(if interleaved { Mat { layout: Layout::Interleaved, ..m } } else { m })
    }
}

impl Mat {
    /// The same matrix with its planes so many bytes further on, `None` where that is behind their end.
    pub fn moved(&self, by: [u64; checkpoint::PLANES]) -> Option<Mat> {
        let mut m = *self;
        for (plane, by) in m.planes.iter_mut().zip(by) {
            if let Some(b) = plane {
                *b = b.slice(by, b.len.checked_sub(by)?)?;
            }
        }
        Some(m)
    }
}

/// The gated linear units of feed-forward blocks, `act(gate) * up`.
#[derive(Copy, Clone, Debug, PartialEq)]
pub enum Glu {
    /// `silu(gate) * up`.
    Swiglu,
    /// `gelu(gate) * up` with the tanh form of gelu, `gelu(x) = x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2`.
    GegluTanh,
    /// `(up + 1) * gate * sigmoid(alpha * gate)`, with gate at most `limit` and up within `-limit ..= limit` (gpt-oss).
    SwigluClamped {
        /// Where both halves are cut.
        limit: f32,
        /// Slope inside the sigmoid.
        alpha: f32,
    },
}

/// What is added to the products of routed experts, `f32[E, n]` each, by expert (not by slot).
#[derive(Copy, Clone, Debug, Default, PartialEq)]
pub struct ExpertBias {
    /// `f32[E, I]`.
    pub gate: Option<Buf>,
    /// `f32[E, I]`.
    pub up: Option<Buf>,
    /// `f32[E, H]`.
    pub down: Option<Buf>,
}

/// Routed experts as they lie on the device. Fused gate/up tensors are two sets over the same bytes.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct ExpertMats {
    /// `[I, H]` per slot.
    pub gate: MatSet,
    /// `[I, H]` per slot.
    pub up: MatSet,
    /// `[H, I]` per slot.
    pub down: MatSet,
    /// `i32[E]`: slot of each expert, -1 where absent. `None`: slot = expert.
    pub slot_of: Option<Buf>,
    /// `i32[E, 13]`: bytes from the beginning of an expert's slot to each of the four planes of its gate, up and down
    /// matrix, where slots hold parts of a file as they were read and no two experts lie alike; then [`arranged`] of the
    /// three. `None`: 0. Host backends only.
    pub begins: Option<Buf>,
    /// What is added to the products.
    pub bias: ExpertBias,
    /// The nonlinearity.
    pub glu: Glu,
}

/// Bytes of an expert's row in [`ExpertMats::begins`].
pub const BEGINS_ROW: u64 = 4 * (3 * checkpoint::PLANES as u64 + 1);

/// Where planes of a matrix begin in its slot, and whether it is interleaved there.
pub type Place = ([u64; checkpoint::PLANES], bool);

/// The last number of an expert's row in [`ExpertMats::begins`]: which of gate, up and down lie interleaved.
pub fn arranged(mats: [Layout; 3]) -> i32 {
    mats.iter().enumerate().map(|(i, l)| i32::from(*l == Layout::Interleaved) << i).sum()
}

/// Where an expert's matrices lie, from its row of [`ExpertMats::begins`] (numbers of four bytes): where planes begin, and
/// whether each is interleaved. `None` for a row that says something impossible.
pub fn places(row: &[[u8; 4]]) -> Option<[Place; 3]> {
    let mut all = [([0; checkpoint::PLANES], false); 3];
    let (at, flags) = row.split_at_checked(3 * checkpoint::PLANES)?;
    let flags = i32::from_le_bytes(*flags.first()?);
    for (i, (mat, at)) in all.iter_mut().zip(at.chunks(checkpoint::PLANES)).enumerate() {
        mat.1 = flags >> i & 1 == 1;
        for (to, at) in mat.0.iter_mut().zip(at) {
            *to = u64::try_from(i32::from_le_bytes(*at)).ok()?;
        }
    }
    Some(all)
}
