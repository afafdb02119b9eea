//! One grid of cases for every op and every backend, compared with the reference.

mod common;

use common::backends::{cpus, reference};
use common::{Case, cases, grid, history, recurrent};
use device::RowClass;

fn run(cases: &[Case]) {
    grid(cases, cpus());
}

#[test]
fn cases_have_the_same_operands_each_time() {
    for mut cases in [
        cases::rms_norm(),
        cases::rope(),
        cases::gate(),
        cases::route(),
        history::append(),
        history::attention_few(),
        recurrent::conv_silu(),
        recurrent::gated_delta(),
    ] {
        cases.truncate(6);
        grid(&cases, reference());
    }
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
fn zero() {
    run(&cases::zero());
}

#[test]
fn scale() {
    run(&cases::scale());
}

#[test]
fn softcap() {
    run(&cases::softcap());
}

#[test]
fn embed() {
    run(&cases::embed());
}

#[test]
fn likeliest() {
    run(&cases::likeliest());
}

#[test]
fn gather_rows() {
    run(&cases::gather_rows());
}

#[test]
fn route() {
    run(&cases::route());
    run(&cases::route_by_scores());
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
fn attention_of_few_rows_over_rotated_history() {
    run(&history::attention_rotated(RowClass::Few));
}

#[test]
fn attention_of_many_rows_over_rotated_history() {
    run(&history::attention_rotated(RowClass::Many));
}

#[test]
fn conv_silu() {
    run(&recurrent::conv_silu());
}

#[test]
fn shift() {
    run(&recurrent::shift());
}

#[test]
fn gated_delta() {
    run(&recurrent::gated_delta());
}
