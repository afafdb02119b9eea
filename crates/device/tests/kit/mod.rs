//! What the kernel tests share: devices with memory to spare, values on them, weights of any format and an independent
//! model of quantised activations.
#![allow(dead_code, reason = "each test file uses its part")]

use checkpoint::{Block, DType, Format};
use device::{Act, Buf, Cpu, CpuOptions, Device, Isa, Layout, Mat, MatSet, View, split};
use half::f16;
use memory::{Class, Ledger, RegionSizes, Tier};

/// The same numbers on every machine (SplitMix64).
pub struct Rng(pub u64);

impl Rng {
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
    /// In -1 .. 1.
    pub fn unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
    pub fn below(&mut self, n: usize) -> usize {
        (self.bits() % n as u64) as usize
    }
    /// Mostly small values with a large one now and then, as activations are.
    pub fn values(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.unit() * if self.below(50) == 0 { 30.0 } else { 1.0 }).collect()
    }
}

/// A device and the budget its test memory comes from.
pub struct Rig {
    pub dev: Box<dyn Device>,
    ledger: Ledger,
}

impl Rig {
    pub fn new(dev: Box<dyn Device>) -> Self {
        Rig { dev, ledger: Ledger::new(&[(Tier::Host, 1 << 40)]) }
    }
    pub fn cpu(isa: Isa, threads: usize) -> Self {
        let options = CpuOptions { threads: Some(threads), isa: Some(isa) };
        Rig::new(Box::new(Cpu::new(options, RegionSizes { step: 1 << 20, carry: 0 }).unwrap()))
    }
    pub fn bytes(&mut self, bytes: &[u8]) -> Buf {
        let r = self.ledger.reserve(Tier::Host, Class::Workspace, "test", bytes.len().max(1) as u64).unwrap();
        let b = self.dev.alloc(r).unwrap();
        self.dev.write(b, bytes).unwrap();
        b
    }
    /// Bytes that start `offset` behind a page boundary.
    pub fn bytes_at(&mut self, offset: usize, bytes: &[u8]) -> Buf {
        let padded: Vec<u8> = std::iter::repeat_n(0xA5, offset).chain(bytes.iter().copied()).collect();
        self.bytes(&padded).slice(offset as u64, bytes.len() as u64).unwrap()
    }
    pub fn floats(&mut self, v: &[f32], cols: usize) -> View {
        let bytes: Vec<u8> = v.iter().flat_map(|x| x.to_le_bytes()).collect();
        View::dense(self.bytes(&bytes), Act::F32, (v.len() / cols) as u32, cols as u32)
    }
    pub fn ints(&mut self, v: &[i32], cols: usize) -> View {
        let bytes: Vec<u8> = v.iter().flat_map(|x| x.to_le_bytes()).collect();
        View::dense(self.bytes(&bytes), Act::I32, (v.len() / cols) as u32, cols as u32)
    }
    pub fn mat(&mut self, w: &Weights, offset: usize) -> Mat {
        let plane = self.bytes_at(offset, &w.bytes);
        let fmt = Format::Plain(w.dtype);
        Mat {
            n: w.n as u32,
            k: w.k as u32,
            fmt,
            layout: Layout::File,
            row_step: 1,
            planes: [Some(plane), None, None, None],
        }
    }
    /// A matrix in the order that the device brings it into.
    pub fn arranged(&mut self, w: &Weights, offset: usize) -> Mat {
        let m = self.mat(w, offset);
        Mat { layout: self.dev.arrange(&m).unwrap(), ..m }
    }
    /// A matrix in the layout that the device wants.
    pub fn load(&mut self, w: &Weights) -> Mat {
        self.load_set(std::slice::from_ref(w)).first
    }
    /// Matrices of one shape, one behind the other, in the layout that the device wants.
    pub fn load_set(&mut self, all: &[Weights]) -> MatSet {
        let (w, fmt) = (&all[0], Format::Plain(all[0].dtype));
        let (n, k, rows) = (w.n as u32, w.k as u32, (w.n * all.len()) as u64);
        let (m, step) = match self.dev.layout_of(&fmt) {
            Layout::File | Layout::Interleaved => {
                let bytes: Vec<u8> = all.iter().flat_map(|w| w.bytes.clone()).collect();
                let plane = self.bytes(&bytes);
                let m = Mat { n, k, fmt, layout: Layout::File, row_step: 1, planes: [Some(plane), None, None, None] };
                return MatSet { first: m, step: [w.bytes.len() as u64, 0, 0, 0], slots: all.len() as u32 };
            }
            Layout::Split => {
                let (_, bytes) = split::place(&fmt, rows, k).unwrap();
                let whole = self.bytes(&vec![0xA5; bytes as usize]);
                let each = split::row_parts(&fmt, k).unwrap();
                (split::mat(fmt, n, k, rows, whole).unwrap(), each.map(|e| e * w.n as u64))
            }
        };
        for (i, w) in all.iter().enumerate() {
            self.dev.load_rows(&m, (i * w.n) as u64, w.n as u64, &w.bytes).unwrap();
        }
        MatSet { first: m, step: [step[0], step[1], step[2], 0], slots: all.len() as u32 }
    }
    pub fn read(&mut self, v: View) -> Vec<f32> {
        self.dev.read_f32(v).unwrap()
    }
}

pub fn isas() -> impl Iterator<Item = Isa> {
    Isa::ALL.into_iter().filter(|i| i.available())
}

pub fn dtypes() -> impl Iterator<Item = DType> {
    [DType::F32, DType::F16, DType::BF16].into_iter().chain(Block::ALL.map(DType::Block))
}

/// Weights as bytes and as the values that they stand for.
pub struct Weights {
    pub dtype: DType,
    pub n: usize,
    pub k: usize,
    pub bytes: Vec<u8>,
    pub values: Vec<f32>,
}

impl Weights {
    /// Rows `first .. first + n`.
    pub fn rows(&self, first: usize, n: usize) -> Weights {
        let row = self.bytes.len() / self.n;
        Weights {
            n,
            bytes: self.bytes[first * row..(first + n) * row].to_vec(),
            values: self.values[first * self.k..(first + n) * self.k].to_vec(),
            ..*self
        }
    }
    /// Blocks of random codes and sub-scales: every bit pattern, with block scales of a sensible size.
    pub fn random(rng: &mut Rng, dtype: DType, n: usize, k: usize) -> Self {
        let mut bytes = vec![0; dtype.row_bytes(k as u64).unwrap() as usize * n];
        match dtype {
            DType::Block(b) => {
                bytes.iter_mut().for_each(|x| *x = rng.bits() as u8);
                bytes.chunks_exact_mut(b.bytes()).for_each(|block| scale(rng, b, block));
            }
            _ => dtype.encode(&(0..n * k).map(|_| rng.unit()).collect::<Vec<_>>(), &mut bytes).unwrap(),
        }
        let mut values = vec![0.0; n * k];
        dtype.decode(&bytes, &mut values).unwrap();
        Weights { dtype, n, k, bytes, values }
    }
}

fn scale(rng: &mut Rng, b: Block, block: &mut [u8]) {
    let mut half = |at: usize, size: f32| {
        let v = f16::from_f32(size * (1.5 + rng.unit()));
        block[at..at + 2].copy_from_slice(&v.to_le_bytes());
    };
    match b {
        Block::Q4_0 => half(0, 0.1),
        Block::Q5_0 => half(0, 0.05),
        Block::Q8_0 | Block::Iq4Nl => half(0, 0.01),
        Block::Q4_1 => [(0, 0.1), (2, -0.6)].into_iter().for_each(|(at, size)| half(at, size)),
        Block::Q5_1 => [(0, 0.05), (2, -0.6)].into_iter().for_each(|(at, size)| half(at, size)),
        Block::Q4K => [(0, 0.002), (2, 0.02)].into_iter().for_each(|(at, size)| half(at, size)),
        Block::Q5K => [(0, 0.001), (2, 0.02)].into_iter().for_each(|(at, size)| half(at, size)),
        Block::Q6K => half(208, 0.0005),
        Block::Iq4Xs => half(0, 0.0005),
        Block::Mxfp4 => block[0] = 122 + block[0] % 5,
        Block::Q2K => [(80, 0.02), (82, 0.02)].into_iter().for_each(|(at, size)| half(at, size)),
        Block::Q3K => half(108, 0.005),
        Block::Iq3S => half(0, 0.002),
        // Scales around 1/8.
        Block::Nvfp4 => block[..4].iter_mut().for_each(|d| *d = 24 + *d % 16),
    }
}

/// What is left of activations in fifteen bits, per 32: `d = max / 16256`, codes to the nearest, ties to even.
pub fn fifteen_bits(x: &[f32]) -> Vec<f32> {
    let group = |x: &[f32]| {
        let max = x.iter().fold(0f32, |m, x| m.max(x.abs()));
        let d = max / 16256.0;
        let by = if max == 0.0 { 0.0 } else { 16256.0 / max };
        x.iter().map(|x| (x * by).round_ties_even() * d).collect::<Vec<_>>()
    };
    x.chunks(32).flat_map(group).collect()
}

/// The activations that a format meets.
pub fn met_by(dtype: DType, x: &[f32]) -> Vec<f32> {
    if matches!(dtype, DType::Block(_)) { fifteen_bits(x) } else { x.to_vec() }
}

/// `x w^T` in f64 and, for tolerances, `|x| |w|` of each element.
pub fn product(x: &[f32], w: &Weights) -> Vec<(f32, f32)> {
    let norm = |v: &[f32]| v.iter().map(|v| (v * v) as f64).sum::<f64>().sqrt();
    let rows = x.chunks(w.k);
    rows.flat_map(|x| {
        w.values.chunks(w.k).map(move |w| {
            let dot: f64 = x.iter().zip(w).map(|(x, w)| *x as f64 * *w as f64).sum();
            (dot as f32, (norm(x) * norm(w)) as f32)
        })
    })
    .collect()
}
