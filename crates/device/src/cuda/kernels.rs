//! Every kernel of the program, found once when a device is opened.

use super::driver::{Context, Kernel};
use super::image;
use crate::error::{Error, Result};
use checkpoint::{Block, DType, Format};
use memory::KvFormat;
use std::collections::HashMap;

/// Formats in the order of `enum Fmt` in decode.cuh, by the names in the kernels' names.
const FORMATS: [&str; 16] = [
    "f32", "f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_k", "q5_k", "q6_k", "iq4_nl", "iq4_xs", "mxfp4",
    "affine4", "affine8",
];

/// A format's number in the kernels.
pub fn number(fmt: &Format) -> Option<usize> {
    let t = match fmt {
        Format::Plain(t) => t,
        // As a GPU wants it from the start: codes of neighbours, scales apart.
        Format::Mxfp4Hf => &DType::Block(Block::Mxfp4),
        Format::Affine { bits: 4, .. } => return FORMATS.iter().position(|f| *f == "affine4"),
        Format::Affine { bits: 8, .. } => return FORMATS.iter().position(|f| *f == "affine8"),
        _ => return None,
    };
    let name = match t {
        DType::F32 => "f32",
        DType::F16 => "f16",
        DType::BF16 => "bf16",
        DType::Block(Block::Q4_0) => "q4_0",
        DType::Block(Block::Q4_1) => "q4_1",
        DType::Block(Block::Q5_0) => "q5_0",
        DType::Block(Block::Q5_1) => "q5_1",
        DType::Block(Block::Q8_0) => "q8_0",
        DType::Block(Block::Q4K) => "q4_k",
        DType::Block(Block::Q5K) => "q5_k",
        DType::Block(Block::Q6K) => "q6_k",
        DType::Block(Block::Iq4Nl) => "iq4_nl",
        DType::Block(Block::Iq4Xs) => "iq4_xs",
        DType::Block(Block::Mxfp4) => "mxfp4",
        _ => return None,
    };
    FORMATS.iter().position(|f| *f == name)
}

/// Which of a matrix's planes are codes, high bits (or offsets) and scales in the kernels.
pub fn planes(fmt: &Format) -> [Option<usize>; 3] {
    match fmt {
        Format::Mxfp4Hf => [Some(0), None, Some(1)],
        Format::Affine { .. } => [Some(0), Some(2), Some(1)],
        _ => [Some(0), Some(1), Some(2)],
    }
}

/// `aux` of `Mat` in decode.cuh.
pub fn aux(fmt: &Format) -> i32 {
    match fmt {
        Format::Affine { group, scale, .. } => {
            let kind = number(&Format::Plain(*scale)).unwrap_or(0) as i32;
            (*group / 32).min(0xffff) as i32 | kind << 16
        }
        _ => 0,
    }
}

/// Shared memory that a GEMM of `rows` rows a block takes: two stages of tiles 64 wide in bf16.
pub const fn gemm_shared(rows: u32) -> u32 {
    2 * (rows + 128) * 128
}

/// Shared memory of the table that four-bit codes are looked up in.
const TABLE: u32 = 256 * 128;

/// Shared memory of attention of many rows over heads `d` wide: queries of 64 rows, keys and values of as many in
/// bf16; of packed history half as many where heads are widest, with scales and the table behind them.
pub const fn flash_shared(d: u32, packed: bool) -> u32 {
    let keys = if packed && d == 256 { 32 } else { 64 };
    let tiles = (64 + 2 * keys) * d * 2;
    if packed { tiles + 2 * keys * 4 + TABLE } else { tiles }
}

/// Shared memory of attention of few rows: the table, eight queries and (four-bit codes, where they fit) tiles of eight warps,
/// or what four warps hand over.
pub const fn few_shared(d: u32, staged: bool) -> u32 {
    let tiles = if staged && d <= 256 { 8 * (16 * d + 64) } else { 0 };
    let (begin, end) = (TABLE + 8 * (d + 32) * 2 + tiles, 4 * (d / 4 + 4) * 32 * 4);
    if begin > end { begin } else { end }
}

/// Formats whose weights go through shared memory, and rows of a block.
fn streams() -> impl Iterator<Item = (&'static str, u32)> {
    ["q4_0", "mxfp4"].into_iter().flat_map(|f| [1, 2, 4].map(|rows| (f, rows)))
}

/// Shared memory of each warp of a product that streams its weights, as stream.cu has it: a ring of stages of sixteen outputs and
/// eight groups, and the rows' codes of these groups.
fn stream_shared(fmt: &str, rows: u32) -> [u32; 2] {
    let (scale, stages) = match (fmt, rows) {
        ("mxfp4", 1) => (1, 4),
        ("mxfp4", 2) => (1, 3),
        ("mxfp4", _) => (1, 2),
        (_, 4..) => (2, 2),
        _ => (2, 3),
    };
    [stages * (TILE * (16 + scale) + rows * 8 * 72), stages * TILE * (16 + scale)]
}

/// Blocks of a tile that streams, as tiles.cuh has it: sixteen outputs by eight groups.
const TILE: u32 = 16 * 8;

/// Bytes of such a tile.
pub fn tile_bytes(fmt: &Format) -> u32 {
    TILE * if number(fmt).is_some_and(|n| FORMATS[n] == "mxfp4") { 17 } else { 18 }
}

/// Bytes of the codes of a row of `k` columns in shared memory, as norm.cuh has it.
pub const fn code_bytes(k: u32) -> u32 {
    72 * (k / 32) + 64
}

/// Most shared memory of kernels that stream weights, or ask for all of them at once.
pub const STREAMED: u32 = 200 << 10;

/// A product of few rows that streams its weights.
#[derive(Copy, Clone)]
pub struct Stream {
    pub kernel: Kernel,
    /// The same behind a norm.
    pub normed: Kernel,
    /// Shared memory of a warp.
    pub shared: u32,
    /// The same of a warp where a block has the rows' codes, not each stage its part of them.
    pub bare: u32,
}

/// Widths of heads that packed history can have.
const WIDTHS: [u32; 4] = [64, 128, 256, 512];

/// A history format's part of the names of kernels.
pub fn history(fmt: KvFormat) -> &'static str {
    fmt.name()
}

/// Kernels by name.
pub struct Kernels {
    by_name: HashMap<String, Kernel>,
    streams: HashMap<String, Stream>,
    /// The architecture they were compiled for.
    pub arch: String,
}

fn names(unit: &str, arch: &str) -> Vec<String> {
    let some = |names: &[&str]| names.iter().map(|n| n.to_string()).collect::<Vec<_>>();
    let each = |from: usize, forms: &[&str]| -> Vec<String> {
        FORMATS[from..].iter().flat_map(|f| forms.iter().map(move |form| form.replace('*', f))).collect()
    };
    let widths = |formats: &[&str], form: &str, widths: &[u32]| -> Vec<String> {
        formats.iter().flat_map(|f| widths.iter().map(move |d| format!("{form}_{f}_{d}"))).collect()
    };
    match unit {
        "rows" => some(&[
            "rms_norm",
            "norm_rope",
            "norm_gate",
            "rope",
            "gate",
            "glu",
            "add",
            "gather_rows",
            "likeliest_parts",
            "likeliest_meet",
            "combine",
            "route",
            "route_ranks",
            "scale",
            "softcap",
            "zero",
        ]),
        "normed" => streams().filter(|s| s.1 != 2).map(|(f, rows)| format!("normed_{f}_{rows}")).collect(),
        "chosen" => {
            ["q4_0", "mxfp4"].iter().flat_map(|f| [format!("chosen_up_{f}"), format!("chosen_down_{f}")]).collect()
        }
        "gated" => some(&["delta_gate"]),
        "heads" => some(&["heads"]),
        "recurrent" => some(&["conv_silu", "shift", "delta_32", "delta_128", "delta_256"]),
        "repack" => some(&["repack"]),
        "linear" => {
            let pairs = if arch == "sm_90" { each(0, &["linear_*_2"]) } else { Vec::new() };
            [some(&["quantise", "linear_many_f32"]), each(0, &["linear_*_1", "linear_*_4", "embed_*"]), pairs].concat()
        }
        "stream" => streams().map(|(f, rows)| format!("stream_{f}_{rows}")).collect(),
        "moe" => [some(&["expert_sort", "expert_order", "expert_sum"]), each(0, &["gate_up_*", "down_*"])].concat(),
        "gemm" => [some(&["to_bf16"]), each(1, &["gemm_*_256", "gemm_*_128", "gemm_*_32"])].concat(),
        "flash" => widths(&["bf16", "q8", "tq4"], "flash", &WIDTHS[..3]),
        "few" => widths(&["bf16", "q8", "tq4"], "few", &WIDTHS),
        "attention" => [
            some(&["append", "attention_few_f32", "attention_few_bf16", "attention_meet"]),
            widths(&["q8", "tq4"], "append", &WIDTHS),
        ]
        .concat(),
        _ => Vec::new(),
    }
}

impl Kernels {
    /// Loads the code that suits a card best.
    ///
    /// # Errors
    /// [`Error::NoCuda`] for cards that are too old, [`Error::Cuda`].
    pub fn load(cx: &Context, capability: u32) -> Result<Self> {
        let (arch, units) = image::code_for(capability)?;
        let mut by_name = HashMap::new();
        for (unit, code) in units {
            let names = names(&unit, &arch);
            let found = cx.load(&code, &names)?;
            by_name.extend(names.into_iter().zip(found));
        }
        for (name, k) in &by_name {
            let number = name.rsplit('_').next().and_then(|n| n.parse().ok());
            match (name.split('_').next(), number) {
                (Some("gemm"), Some(rows)) => cx.allow_shared(*k, gemm_shared(rows))?,
                (Some("flash"), Some(d)) => cx.allow_shared(*k, flash_shared(d, !name.contains("bf16")))?,
                (Some("chosen"), _) => cx.allow_shared(*k, STREAMED)?,
                (Some("few"), Some(d)) => cx.allow_shared(*k, few_shared(d, name.contains("tq4")))?,
                _ => {}
            }
        }
        let mut kernels = Kernels { by_name, streams: HashMap::new(), arch };
        for (f, rows) in streams() {
            let (name, [shared, bare]) = (format!("stream_{f}_{rows}"), stream_shared(f, rows));
            let Ok(kernel) = kernels.get(&name) else { continue };
            let normed = kernels.get(&format!("normed_{f}_{}", if rows == 1 { 1 } else { 4 }))?;
            cx.allow_shared(kernel, STREAMED)?;
            cx.allow_shared(normed, STREAMED)?;
            kernels.streams.insert(name, Stream { kernel, normed, shared, bare });
        }
        Ok(kernels)
    }
    /// The product of a format that streams its weights, on architectures that have one.
    pub fn stream(&self, fmt: &Format, rows: u32) -> Option<Stream> {
        self.streams.get(&format!("stream_{}_{rows}", FORMATS[number(fmt)?])).copied()
    }
    /// Rows that a block of a product without shared memory has where `rows` (at most four) meet its weights.
    pub fn rows(&self, rows: u32) -> u32 {
        let own = rows != 2 || self.by_name.contains_key("linear_f32_2");
        if own { rows.next_power_of_two() } else { 4 }
    }
    /// Whether there are kernels that do what several ops ask for.
    pub fn joins(&self) -> bool {
        self.by_name.contains_key("delta_gate")
    }
    /// A kernel.
    ///
    /// # Errors
    /// [`Error::Cuda`] naming a kernel that the program does not have.
    pub fn get(&self, name: &str) -> Result<Kernel> {
        let missing = || Error::Cuda { call: "kernel", what: format!("{name} is not in the program") };
        self.by_name.get(name).copied().ok_or_else(missing)
    }
    /// A kernel of a format.
    ///
    /// # Errors
    /// [`Error::NoKernel`] for formats that this backend does not multiply.
    pub fn of(&self, op: &'static str, form: &str, fmt: &Format) -> Result<Kernel> {
        let n = number(fmt).ok_or_else(|| Error::NoKernel { op, fmt: fmt.to_string() })?;
        self.get(&form.replace('*', FORMATS[n]))
    }
}
