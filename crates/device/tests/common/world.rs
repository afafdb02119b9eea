//! Operands in device memory, poisoned around what they hold, and what became of them.

use device::{Act, Arena, Buf, Device, Error, Op, Region, View};
use memory::{Class, Ledger, Tier};

/// Every byte that nobody wrote: NaN as f32 and bfloat16, -1 as i32.
const POISON: u8 = 0xff;

/// How far an operand may be from the reference's.
#[derive(Copy, Clone, Debug, PartialEq)]
pub enum Grade {
    /// Same bytes. What an op does not write, and copies.
    Exact,
    /// f32, within this times (element + root mean square of the operand).
    Close(f32),
    /// f32, within this.
    Within(f32),
}

struct Held {
    name: &'static str,
    buf: Buf,
    grade: Grade,
}

/// Rows, heads and columns of a view, and whether it lies with gaps.
#[derive(Copy, Clone, Debug)]
pub struct Shape {
    pub rows: u32,
    pub heads: u32,
    pub cols: u32,
    pub gaps: bool,
}

/// `[rows, heads, cols]`, dense.
pub fn dense(rows: u32, heads: u32, cols: u32) -> Shape {
    Shape { rows, heads, cols, gaps: false }
}

impl Shape {
    /// The same with gaps between heads and rows, at an odd offset.
    pub fn gaps(self, gaps: bool) -> Self {
        Shape { gaps, ..self }
    }
    pub fn len(&self) -> usize {
        (self.rows * self.heads * self.cols) as usize
    }
}

/// Memory of one case on one device.
pub struct World<'d> {
    pub dev: &'d mut dyn Device,
    ledger: Ledger,
    held: Vec<Held>,
}

impl<'d> World<'d> {
    pub fn new(dev: &'d mut dyn Device) -> Self {
        World { dev, ledger: Ledger::new(&[(Tier::Host, 4 << 30)]), held: Vec::new() }
    }
    /// An allocation with these bytes.
    pub fn bytes(&mut self, name: &'static str, grade: Grade, bytes: &[u8]) -> Buf {
        let r = self.ledger.reserve(Tier::Host, Class::Workspace, name, bytes.len().max(1) as u64).unwrap();
        let buf = self.dev.alloc(r).unwrap();
        self.dev.write(buf, bytes).unwrap();
        self.held.push(Held { name, buf, grade });
        buf
    }
    /// An input vector.
    pub fn vector(&mut self, name: &'static str, values: &[f32]) -> Buf {
        let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        self.bytes(name, Grade::Exact, &bytes)
    }
    fn view(&mut self, name: &'static str, grade: Grade, ty: Act, s: Shape, values: &[[u8; 4]]) -> View {
        let (lead, head, row) = if s.gaps { (7, 5, 3) } else { (0, 0, 0) };
        let head = s.cols + if s.heads > 1 { head } else { 0 };
        let row = s.heads * head + row;
        let mut bytes = vec![POISON; 4 * (lead + s.rows * row + lead) as usize];
        for (i, x) in values.iter().enumerate() {
            let (r, h, c) = (i as u32 / (s.heads * s.cols), i as u32 / s.cols % s.heads, i as u32 % s.cols);
            let at = 4 * (lead + r * row + h * head + c) as usize;
            bytes[at..at + 4].copy_from_slice(x);
        }
        let whole = self.bytes(name, grade, &bytes);
        let buf = whole.slice(lead as u64 * 4, whole.bytes() - lead as u64 * 4).unwrap();
        View { buf, ty, rows: s.rows, heads: s.heads, cols: s.cols, stride: [row, head] }
    }
    /// An input.
    pub fn input(&mut self, name: &'static str, s: Shape, values: &[f32]) -> View {
        assert_eq!(values.len(), s.len());
        let bytes: Vec<_> = values.iter().map(|x| x.to_le_bytes()).collect();
        self.view(name, Grade::Exact, Act::F32, s, &bytes)
    }
    /// An input that the op may also write.
    pub fn inout(&mut self, name: &'static str, grade: Grade, s: Shape, values: &[f32]) -> View {
        let v = self.input(name, s, values);
        self.held.last_mut().unwrap().grade = grade;
        v
    }
    /// Poison to be overwritten.
    pub fn output(&mut self, name: &'static str, grade: Grade, s: Shape) -> View {
        self.view(name, grade, Act::F32, s, &[])
    }
    /// Poison to be overwritten by integers.
    pub fn output_ints(&mut self, name: &'static str, s: Shape) -> View {
        self.view(name, Grade::Exact, Act::I32, s, &[])
    }
    /// Input integers.
    pub fn ints(&mut self, name: &'static str, s: Shape, values: &[i32]) -> View {
        assert_eq!(values.len(), s.len());
        let bytes: Vec<_> = values.iter().map(|x| x.to_le_bytes()).collect();
        self.view(name, Grade::Exact, Act::I32, s, &bytes)
    }
    /// Runs an op on poisoned scratch and looks whether it wrote beyond.
    pub fn run(&mut self, op: Op) -> Result<(), Error> {
        let scratch = (self.dev.scratch_fn())(&op, self.dev.caps());
        let step = Buf::whole(Arena::alloc_id(Region::Step), super::backends::SIZES.step);
        let mut bytes = vec![POISON; (scratch + 4096).min(step.bytes()) as usize];
        self.dev.write(step, &bytes)?;
        let name = op.name();
        self.dev.run(op)?;
        self.dev.read(step, &mut bytes)?;
        let beyond = bytes[scratch as usize..].iter().any(|&b| b != POISON);
        assert!(!beyond, "{name} wrote beyond its {scratch} bytes of scratch");
        Ok(())
    }
    /// All memory as it is now.
    pub fn outcome(mut self) -> Outcome {
        let held = std::mem::take(&mut self.held);
        let read = held.into_iter().map(|h| {
            let mut bytes = vec![0; h.buf.bytes() as usize];
            self.dev.read(h.buf, &mut bytes).unwrap();
            self.dev.free(h.buf).unwrap();
            (h.name, h.grade, bytes)
        });
        Outcome(read.collect())
    }
}

/// Name, grade and bytes of every operand.
pub struct Outcome(Vec<(&'static str, Grade, Vec<u8>)>);

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|c| f32::from_le_bytes([c[0], c[1], c[2], c[3]])).collect()
}

impl Outcome {
    /// Whether `got` is what this, the reference, says. It may have operands more, made by running in parts.
    /// `other` takes the place of the tolerance that results were made with.
    pub fn compare(&self, got: &Outcome, other: Option<f32>) -> Result<(), String> {
        assert!(self.0.len() <= got.0.len());
        for ((name, grade, want), (_, _, got)) in self.0.iter().zip(&got.0) {
            match grade {
                Grade::Exact => same(name, want, got)?,
                Grade::Close(tolerance) => close(name, &floats(want), &floats(got), other.unwrap_or(*tolerance))?,
                Grade::Within(most) => within(name, &floats(want), &floats(got), other.unwrap_or(*most))?,
            }
        }
        Ok(())
    }
    /// Whether every byte is the same.
    pub fn same(&self, got: &Outcome) -> Result<(), String> {
        self.0.iter().zip(&got.0).try_for_each(|((name, _, want), (_, _, got))| same(name, want, got))
    }
    /// The f32 of an operand.
    pub fn floats(&self, name: &str) -> Vec<f32> {
        floats(&self.0.iter().find(|(n, ..)| *n == name).unwrap().2)
    }
}

fn same(name: &str, want: &[u8], got: &[u8]) -> Result<(), String> {
    match want.iter().zip(got).position(|(a, b)| a != b) {
        Some(at) => {
            let word =
                |b: &[u8]| b[at / 4 * 4..].first_chunk::<4>().map(|c| (f32::from_le_bytes(*c), i32::from_le_bytes(*c)));
            Err(format!("{name} differs at byte {at}: {:?}, not {:?}", word(got), word(want)))
        }
        None => Ok(()),
    }
}

fn within(name: &str, want: &[f32], got: &[f32], most: f32) -> Result<(), String> {
    let poison = f32::from_le_bytes([POISON; 4]).to_bits();
    for (i, (&w, &g)) in want.iter().zip(got).enumerate() {
        let ok = if w.to_bits() == poison { g.to_bits() == poison } else { (w - g).abs() <= most };
        if !ok {
            return Err(format!("{name}[{i}] is {g}, not {w}: off by {:e}, allowed is {most:e}", (w - g).abs()));
        }
    }
    Ok(())
}

fn close(name: &str, want: &[f32], got: &[f32], tolerance: f32) -> Result<(), String> {
    let poison = f32::from_le_bytes([POISON; 4]).to_bits();
    let held: Vec<f64> = want.iter().filter(|x| x.is_finite()).map(|&x| x as f64).collect();
    let rms = (held.iter().map(|x| x * x).sum::<f64>() / held.len().max(1) as f64).sqrt();
    for (i, (&w, &g)) in want.iter().zip(got).enumerate() {
        let ok = if w.to_bits() == poison {
            g.to_bits() == poison
        } else {
            (w as f64 - g as f64).abs() <= tolerance as f64 * (w.abs() as f64 + rms)
        };
        if !ok {
            let off = (w as f64 - g as f64).abs() / (w.abs() as f64 + rms);
            return Err(format!("{name}[{i}] is {g}, not {w}: off by {off:e}, allowed is {tolerance:e}"));
        }
    }
    Ok(())
}
