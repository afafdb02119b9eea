//! The devices that tests run on.

use device::cpu::{Cpu, CpuOptions, Isa};
use device::{Device, Reference};
use memory::RegionSizes;

/// Workspace of every device here.
pub const SIZES: RegionSizes = RegionSizes { step: 64 << 20, carry: 1 << 20 };

/// A CPU device.
pub fn cpu(isa: Isa, threads: usize) -> Cpu {
    Cpu::new(CpuOptions { threads: Some(threads), isa: Some(isa) }, SIZES).unwrap()
}

/// The instruction sets of this machine.
pub fn isas() -> impl Iterator<Item = Isa> {
    Isa::ALL.into_iter().filter(|i| i.available())
}

/// The CPU backend with every instruction set of this machine and 1, 2 and 3 threads.
pub fn cpus() -> impl Iterator<Item = (String, Box<dyn Device>)> {
    isas().flat_map(|isa| {
        (1..4).map(move |t| (format!("{} x {t}", isa.name()), Box::new(cpu(isa, t)) as Box<dyn Device>))
    })
}

/// The reference itself: what a grid of cases must pass if it is one.
pub fn reference() -> impl Iterator<Item = (String, Box<dyn Device>)> {
    std::iter::once(("reference".into(), Box::new(Reference::new(SIZES).unwrap()) as Box<dyn Device>))
}
