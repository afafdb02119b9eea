//! Work to count the instructions of: `instructions ISA FORMAT ROWS TIMES` multiplies a small matrix, in the order that the
//! device brings it into, with some rows, on one thread. `scripts/instructions` runs it under a counter.

use checkpoint::{Block, DType, Format};
use device::{Act, Buf, Cpu, CpuOptions, Device, Isa, Layout, Mat, Op, RowClass, View};
use memory::{Class, Ledger, RegionSizes, Tier};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

const N: u32 = 64;
const K: u32 = 1024;

fn main() -> Outcome<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [isa, format, rows, times] = &args[..] else { return Err("instructions ISA FORMAT ROWS TIMES".into()) };
    let isa = Isa::ALL.into_iter().find(|i| i.name() == isa).ok_or("no such instruction set")?;
    let floats = [DType::F32, DType::BF16].into_iter();
    let mut all = floats.chain(Block::ALL.map(DType::Block)).map(Format::Plain);
    let fmt = all.find(|f| f.to_string() == *format).ok_or("no such format")?;
    let (rows, times): (u32, u32) = (rows.parse()?, times.parse()?);
    let mut cpu = Cpu::new(CpuOptions { threads: Some(1), isa: Some(isa) }, RegionSizes { step: 1 << 20, carry: 0 })?;
    let dev: &mut dyn Device = &mut cpu;
    let ledger = Ledger::new(&[(Tier::Host, 1 << 30)]);
    let mut filled = |bytes: u64, with: &[u8]| -> Outcome<Buf> {
        let b = dev.alloc(ledger.reserve(Tier::Host, Class::Workspace, "count", bytes)?)?;
        let to = dev.host_mut(b).ok_or("not a host device")?;
        to.chunks_mut(with.len()).for_each(|c| c.copy_from_slice(&with[..c.len()]));
        Ok(b)
    };
    let planes = [Some(filled(fmt.bytes(N.into(), K.into()), &[0x11])?), None, None, None];
    let x = View::dense(filled(u64::from(rows * K) * 4, &1f32.to_le_bytes())?, Act::F32, rows, K);
    let out = View::dense(filled(u64::from(rows * N) * 4, &[0])?, Act::F32, rows, N);
    let file = Mat { n: N, k: K, fmt, layout: Layout::File, row_step: 1, planes };
    let w = Mat { layout: dev.arrange(&file)?, ..file };
    for _ in 0..times {
        dev.run(Op::Linear { out, x, w, bias: None, add: false, class: RowClass::Few })?;
    }
    Ok(())
}
