//! A long prompt beside an answer, simulated with costs of all kinds: how long the answer's tokens take, and how long the
//! prompt.

use super::tests::{Draw, limits};
use super::{Ask, Id, Limits, Outcome, Schedule, Step};
use std::time::Duration;

/// What steps cost, in seconds.
struct Machine {
    layers: u32,
    patience: f64,
    /// Answers under way.
    answers: u64,
    /// A token of one answer; each other adds a fifth.
    decode: f64,
    /// A layer of so many rows at a depth.
    layer: fn(layer: u32, rows: u32, depth: u32) -> f64,
    /// One step in so many takes two thirds longer; 0 where none does.
    noise: u32,
}

/// What was seen.
struct Seen {
    /// Times between tokens beside the prompt, in times of a token's of one answer alone.
    gaps: Vec<f64>,
    /// Seconds to the prompt's first token, in times of what it takes alone.
    prompt: f64,
}

impl Seen {
    fn at(&self, share: f64) -> f64 {
        let mut all = self.gaps.clone();
        all.sort_by(f64::total_cmp);
        all[((all.len() - 1) as f64 * share) as usize]
    }
    fn most(&self) -> f64 {
        self.at(1.0)
    }
}

impl Machine {
    /// One layer in four attends to all positions, the others to none. Costs are those of E81 in `docs/experiments.md`.
    fn small() -> Machine {
        let layer = |l: u32, rows: u32, depth: u32| {
            let attends = if l % 4 == 3 { 5.5e-8 * rows as f64 * depth as f64 } else { 0.0 };
            0.014 + 0.000_25 * rows as f64 + attends
        };
        Machine { layers: 4, patience: 2.0, answers: 1, decode: 0.0075, layer, noise: 0 }
    }

    /// Seconds of a prompt alone, in the largest slices.
    fn alone(&self, l: Limits, prompt: u32) -> f64 {
        let whole = |at: u32| (0..self.layers).map(|i| (self.layer)(i, l.chunk.min(prompt - at), at)).sum::<f64>();
        (0..prompt).step_by(l.chunk as usize).map(whole).sum()
    }

    fn run(&self, prompt: u32) -> Seen {
        let l = Limits { layers: self.layers, patience: self.patience, context: 1 << 20, pages: 1 << 13, ..limits() };
        let (mut s, mut draw) = (Schedule::new(l), Draw(11));
        // Read alone, it takes time from nobody, and owes none.
        for id in 1..=self.answers {
            s.arrive(Id(id), Ask { prompt: 8_000, most: None, drafts: false }, &[]).unwrap();
        }
        let last_one = Id(99);
        let (mut now, mut last, mut came) = (0.0, 0.0, f64::INFINITY);
        let (mut tokens, mut len, mut done, mut all, mut gaps) = (0, 0, 0, false, Vec::new());
        loop {
            let (outcome, took) = match s.step() {
                Step::Open(_) => (Outcome::Opened { kept: 0 }, 0.0),
                Step::Read { rows, layers, id } => {
                    let at = if id == last_one { len } else { 0 };
                    let took = (done..done + layers).map(|i| (self.layer)(i, rows, at)).sum::<f64>();
                    done = (done + layers) % self.layers;
                    len += if done == 0 && id == last_one { rows } else { 0 };
                    (Outcome::Read { ended: false }, took)
                }
                Step::Decode(ids) if ids.contains(&last_one) => {
                    return Seen { gaps, prompt: (now - came) / self.alone(l, prompt) };
                }
                Step::Decode(ids) => {
                    all = ids.len() as u64 == self.answers;
                    (Outcome::Decoded { ended: vec![] }, self.decode * (0.8 + 0.2 * ids.len() as f64))
                }
                other => panic!("{other:?}"),
            };
            let odd = self.noise > 0 && draw.below(self.noise) == 0;
            let took = if odd { took * 5.0 / 3.0 } else { took };
            now += took;
            if matches!(outcome, Outcome::Decoded { .. }) {
                if came.is_finite() {
                    gaps.push((now - last) / self.decode);
                }
                (last, tokens) = (now, tokens + u32::from(all));
            }
            s.done((outcome, Duration::from_secs_f64(took)));
            if tokens >= 10 && !came.is_finite() {
                came = now;
                s.arrive(last_one, Ask { prompt, most: Some(8), drafts: false }, &[]).unwrap();
            }
        }
    }
}

#[test]
fn an_answer_keeps_its_pace_beside_a_long_prompt() {
    // A chunk of 256 rows takes 278 ms, forty times a token; a layer of 64 rows fits between two.
    let layer = |_: u32, rows: u32, _: u32| (0.02 + 0.001 * rows as f64) / 30.0;
    let seen = Machine { layers: 30, patience: 2.0, answers: 1, decode: 0.007, layer, noise: 0 }.run(7_000);
    assert!(seen.most() <= 2.0 * 1.01, "{} times a token", seen.most());
    // Half of the time is the prompt's, and its slices are large enough to cost little more than alone.
    assert!(seen.prompt <= 3.0, "{} times as long as alone", seen.prompt);
}

/// A layer of 64 rows takes four tokens' time, and one that attends to 24,000 positions fifteen.
#[test]
fn where_not_even_the_least_piece_fits_one_time_in_twenty_five_is_long() {
    let seen = Machine::small().run(24_000);
    println!(
        "95% {:.2}, most {:.1} times a token; the prompt {:.2} times as long",
        seen.at(0.95),
        seen.most(),
        seen.prompt
    );
    assert!(seen.at(0.95) <= 2.0, "{} times a token", seen.at(0.95));
    assert!(seen.most() <= 30.0, "{} times a token", seen.most());
    assert!(seen.prompt <= 3.0, "{} times as long as alone", seen.prompt);
}

/// Three answers take 1.4 times as long for a token as one, which leaves little for a prompt beside them.
#[test]
fn several_answers_keep_the_pace_of_one() {
    let layer = |_: u32, rows: u32, _: u32| (0.02 + 0.001 * rows as f64) / 30.0;
    let many = Machine { layers: 30, patience: 2.0, answers: 3, decode: 0.007, layer, noise: 0 };
    for (machine, most) in [(many, 6.0), (Machine { answers: 3, ..Machine::small() }, 6.0)] {
        let seen = machine.run(12_000);
        assert!(seen.at(0.95) <= 2.0, "{} times a token", seen.at(0.95));
        assert!(seen.prompt <= most, "{} times as long as alone", seen.prompt);
    }
}

/// Twelve thousand positions in, layers that attend do not fit any more, and the others do.
#[test]
fn layers_that_grow_out_of_the_patience_are_waited_for() {
    let layer = |l: u32, rows: u32, depth: u32| {
        rows as f64 * (0.000_05 + if l % 4 == 3 { 1.3e-8 * depth as f64 } else { 0.0 }) + 0.002
    };
    let seen = Machine { layers: 40, patience: 2.0, answers: 1, decode: 0.0125, layer, noise: 0 }.run(24_000);
    assert!(seen.at(0.95) <= 2.0, "{} times a token", seen.at(0.95));
    assert!(seen.prompt <= 3.0, "{} times as long as alone", seen.prompt);
}

#[test]
fn steps_that_take_longer_now_and_then_make_slices_smaller_and_starve_nobody() {
    let layer = |_: u32, rows: u32, _: u32| (0.02 + 0.001 * rows as f64) / 30.0;
    for noise in [10, 30, 100] {
        for machine in [
            Machine { layers: 30, patience: 2.0, answers: 1, decode: 0.007, layer, noise },
            Machine { noise, ..Machine::small() },
        ] {
            let seen = machine.run(12_000);
            assert!(seen.at(0.95) <= 2.0, "one in {noise}: {} times a token", seen.at(0.95));
            assert!(seen.prompt <= 5.0, "one in {noise}: {} times as long as alone", seen.prompt);
        }
    }
}

/// Without any patience, and where a piece takes a hundred tokens' time, a prompt still gets a ninth of the time.
#[test]
fn a_prompt_never_starves() {
    let slow = |_: u32, rows: u32, _: u32| 0.01 * rows as f64;
    for (patience, layer) in [(1.0, Machine::small().layer), (1.0, slow), (2.0, slow)] {
        let seen = Machine { patience, layer, ..Machine::small() }.run(4_000);
        assert!(seen.at(0.95) <= patience.max(1.01), "{} times a token", seen.at(0.95));
        assert!(seen.prompt <= 16.0, "{} times as long as alone", seen.prompt);
    }
}
