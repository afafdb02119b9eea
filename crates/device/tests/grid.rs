//! One grid of cases for every op and every backend, compared with the reference.

mod common;

use common::backends::{cpus, reference};
use common::{Case, cases, grid, history, recurrent};

/// The cases that do not tell the reference from itself would tell nothing: their operands must be the same each time.
fn run(cases: &[Case]) {
    grid(cases, reference());
    grid(cases, cpus());
}

#[test]
fn rms_norm() {
    run(&cases::rms_norm());
}

#[test]
fn rope() {
    run(&cases::rope());
}

#[test]
fn gate() {
    run(&cases::gate());
}

#[test]
fn glu() {
    run(&cases::glu());
    run(&cases::glu_of_halves());
}

#[test]
fn add() {
    run(&cases::add());
}

#[test]
fn gather_rows() {
    run(&cases::gather_rows());
}

#[test]
fn route() {
    run(&cases::route());
}

#[test]
fn combine() {
    run(&cases::combine());
}

#[test]
fn append() {
    run(&history::append());
}

#[test]
fn attention_of_few_rows() {
    run(&history::attention_few());
}

#[test]
fn attention_of_many_rows() {
    run(&history::attention_many());
}

#[test]
fn conv_silu() {
    run(&recurrent::conv_silu());
}

#[test]
fn gated_delta() {
    run(&recurrent::gated_delta());
}
