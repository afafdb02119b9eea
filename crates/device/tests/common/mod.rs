//! The grid: cases of every op, built on any device and compared with the reference.
#![allow(dead_code, reason = "each test file uses a part of this")]

pub mod backends;
pub mod cases;
pub mod history;
pub mod random;
pub mod recurrent;
pub mod steps;
pub mod world;

use device::{Device, Op, Reference};
use world::{Outcome, World};

/// One op on random operands. `build` is called once per device and must do the same each time.
pub struct Case {
    pub name: String,
    pub build: Box<dyn Fn(&mut World) -> Op>,
}

impl Case {
    pub fn new(name: impl Into<String>, build: impl Fn(&mut World) -> Op + 'static) -> Self {
        Case { name: name.into(), build: Box::new(build) }
    }
    /// All memory of the case after its op ran on `dev`.
    pub fn outcome(&self, dev: &mut dyn Device) -> Outcome {
        let mut w = World::new(dev);
        let op = (self.build)(&mut w);
        w.run(op).unwrap_or_else(|e| panic!("{}: {e}", self.name));
        w.outcome()
    }
    /// As [`outcome`](Self::outcome), with ops made of the case's op, one after the other.
    pub fn outcome_of(&self, dev: &mut dyn Device, run: impl FnOnce(&mut World, Op)) -> Outcome {
        let mut w = World::new(dev);
        let op = (self.build)(&mut w);
        run(&mut w, op);
        w.outcome()
    }
}

/// Runs all cases on every device that `devices` makes and compares each with the reference, every byte of every
/// operand: results within their tolerance, all else untouched.
pub fn grid<'a>(cases: &[Case], devices: impl Iterator<Item = (String, Box<dyn Device + 'a>)>) {
    grid_within(cases, devices, |_| None);
}

/// The same, where `tolerance` may give results of a case, by its name, another one.
pub fn grid_within<'a>(
    cases: &[Case],
    devices: impl Iterator<Item = (String, Box<dyn Device + 'a>)>,
    tolerance: impl Fn(&str) -> Option<f32>,
) {
    assert!(!cases.is_empty());
    let mut oracle = Reference::new(backends::SIZES).unwrap();
    let want: Vec<Outcome> = cases.iter().map(|c| c.outcome(&mut oracle)).collect();
    for (name, mut dev) in devices {
        for (case, want) in cases.iter().zip(&want) {
            let got = case.outcome(&mut *dev);
            if let Err(e) = want.compare(&got, tolerance(&case.name)) {
                panic!("{} on {name}: {e}", case.name);
            }
        }
    }
}
