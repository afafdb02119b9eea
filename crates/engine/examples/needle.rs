//! Whether a model finds sentences again that lie far back in a long text, with its history in several formats.
//!
//! `cargo run --release -p engine --example needle -- MODEL TEXT [tokens=8000] [seeds=3] [kv=bf16,tq4+own-page,...]`
//!
//! Ten sentences, each giving a city a number of four digits, are spread over `tokens` tokens of the text. Then every
//! city is asked for: a number counts as found when greedy decoding says all of its digits. All questions are asked
//! behind the same history, of which nothing stays (rows that are not accepted). Formats are worth comparing only where
//! the first of them finds most.

use engine::{Ask, Context, Model, OpenOptions, Wanted, argmax};
use memory::KvSpec;
use std::error::Error;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use text::{Specials, Tokenizer};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const CITIES: [&str; 10] = ["Oslo", "Lima", "Cairo", "Quito", "Delhi", "Paris", "Tokyo", "Sofia", "Dublin", "Havana"];
/// Most rows of a question with its answer.
const ROWS: u32 = 48;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let option = |name: &str| args.iter().find_map(|a| a.strip_prefix(name));
    let mut plain = args.iter().filter(|a| !a.contains('='));
    let (Some(model), Some(text)) = (plain.next(), plain.next()) else {
        return Err("needle MODEL TEXT [tokens=8000] [seeds=3] [kv=bf16,tq4+own-page]".into());
    };
    let tokens: usize = option("tokens=").unwrap_or("8000").parse()?;
    let seeds: u64 = option("seeds=").unwrap_or("3").parse()?;
    let text = std::fs::read_to_string(text)?;
    for kv in option("kv=").unwrap_or("bf16").split(',') {
        let ask = Ask {
            kv: Some(kv.parse::<KvSpec>()?),
            few: ROWS,
            context: Context::Exactly(tokens as u32 + 2 * ROWS),
            ..Ask::default()
        };
        let how = OpenOptions { ask, ..OpenOptions::default() };
        let mut model = Model::open(PathBuf::from(model), &how, &mut |_| {})?;
        let mut found = 0;
        for seed in 0..seeds {
            let got = trial(&mut model, &text, tokens, seed)?;
            println!("{kv:<24} seed {seed}: {got} of {}", CITIES.len());
            found += got;
        }
        println!("{kv:<24} all: {found} of {} ", seeds as usize * CITIES.len());
    }
    Ok(())
}

/// Four digits for a city.
fn number(seed: u64, city: usize) -> u64 {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (city as u64 + 1).wrapping_mul(0xd6e8_feb8_6659_fd93);
    x ^= x >> 31;
    1000 + x.wrapping_mul(0xbf58_476d_1ce4_e5b9) % 9000
}

fn sentence(city: &str) -> String {
    format!(" The secret number of {city} is")
}

/// Cities whose number is found behind one text.
fn trial(model: &mut Model, text: &str, tokens: usize, seed: u64) -> Result<usize> {
    let t = model.tokenizer.as_ref().ok_or("the model has no tokenizer")?;
    let ids = haystack(t, text, tokens, seed)?;
    let asked = questions(t, seed)?;
    let exec = &mut model.exec;
    let vocab = exec.family().spec().vocab as usize;
    let seq = exec.open()?;
    exec.prefill(seq, &ids, Wanted::Last, &AtomicBool::new(false), &mut |_| {})?;
    let mut found = 0;
    for (question, digits) in &asked {
        let rows: Vec<u32> = question.iter().chain(&digits[..digits.len() - 1]).copied().collect();
        let logits = exec.verify(seq, &rows, |_| 0)?;
        let said = |i: usize| argmax(&logits[(question.len() - 1 + i) * vocab..][..vocab]);
        found += usize::from(digits.iter().enumerate().all(|(i, d)| said(i) == Some(*d)));
    }
    exec.close(seq)?;
    Ok(found)
}

/// The text from a place that depends on the seed, with the sentences in it at equal distances.
fn haystack(t: &Tokenizer, text: &str, tokens: usize, seed: u64) -> Result<Vec<u32>> {
    let ids = t.encode(text, Specials::Plain)?;
    let mut hay = ids.iter().cycle().skip(seed as usize * 9_973 % ids.len()).copied();
    let mut needles = Vec::new();
    for (i, city) in CITIES.iter().enumerate() {
        needles.push(t.encode(&format!("{} {}.", sentence(city), number(seed, i)), Specials::Plain)?);
    }
    let of_text = tokens.saturating_sub(needles.iter().map(Vec::len).sum());
    let mut all = Vec::new();
    for needle in needles {
        all.extend(hay.by_ref().take(of_text / (CITIES.len() + 1)));
        all.extend(needle);
    }
    all.extend(hay.take(of_text / (CITIES.len() + 1)));
    Ok(all)
}

/// What is asked, and the tokens of the right answer.
fn questions(t: &Tokenizer, seed: u64) -> Result<Vec<(Vec<u32>, Vec<u32>)>> {
    let mut all = Vec::new();
    for (i, city) in CITIES.iter().enumerate() {
        let question = t.encode(&format!("\n\n{}", sentence(city).trim()), Specials::Plain)?;
        let whole = t.encode(&format!("\n\n{} {}", sentence(city).trim(), number(seed, i)), Specials::Plain)?;
        if !whole.starts_with(&question) || whole.len() == question.len() {
            return Err("the tokenizer joins question and number".into());
        }
        let digits = whole[question.len()..].to_vec();
        all.push((question, digits));
    }
    Ok(all)
}
