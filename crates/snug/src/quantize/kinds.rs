//! Which tensor gets which type.

use anyhow::{Result, bail};
use checkpoint::{Block, DType};

/// Names on the command line.
const NAMES: [(&str, DType); 12] = [
    ("f32", DType::F32),
    ("f16", DType::F16),
    ("bf16", DType::BF16),
    ("q8_0", DType::Block(Block::Q8_0)),
    ("q5_0", DType::Block(Block::Q5_0)),
    ("q5_1", DType::Block(Block::Q5_1)),
    ("q4_0", DType::Block(Block::Q4_0)),
    ("q4_1", DType::Block(Block::Q4_1)),
    ("q4_k", DType::Block(Block::Q4K)),
    ("q5_k", DType::Block(Block::Q5K)),
    ("q6_k", DType::Block(Block::Q6K)),
    ("mxfp4", DType::Block(Block::Mxfp4)),
];

/// The type of that name.
///
/// # Errors
/// A name nobody can write, with those that can be.
pub fn parse_type(name: &str) -> Result<DType> {
    let lower = name.to_ascii_lowercase();
    match NAMES.iter().find(|(n, _)| *n == lower) {
        Some((_, t)) => Ok(*t),
        None => {
            let known: Vec<_> = NAMES.iter().map(|(n, _)| *n).collect();
            bail!("'{name}' is not a type that can be written; {} are", known.join(", "))
        }
    }
}

/// A pattern of tensor names and the type they get.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// `*` stands for anything; matches anywhere in the GGUF name.
    pub pattern: String,
    /// The type.
    pub to: DType,
}

impl Rule {
    /// From `PATTERN=TYPE`.
    ///
    /// # Errors
    /// Without `=`, or with an unknown type.
    pub fn parse(text: &str) -> Result<Self> {
        let Some((pattern, to)) = text.rsplit_once('=') else { bail!("'{text}' is not PATTERN=TYPE") };
        if pattern.is_empty() {
            bail!("'{text}' has no pattern before '='");
        }
        Ok(Rule { pattern: pattern.to_string(), to: parse_type(to)? })
    }
    /// Whether the pattern is found in the name.
    pub fn matches(&self, name: &str) -> bool {
        let mut rest = name;
        self.pattern.split('*').all(|part| match rest.find(part) {
            Some(at) => {
                rest = &rest[at + part.len()..];
                true
            }
            None => false,
        })
    }
}

/// Rules in order.
pub type Rules = Vec<Rule>;

/// Parts of names whose matrices are small and sensitive: they stay floats.
const KEPT: [&str; 5] = ["ffn_gate_inp", "ssm_conv1d", "ssm_alpha", "ssm_beta", "_norm"];

/// The type of a tensor of this GGUF name and shape (slowest dimension first) that is stored as `from`, and whether it is
/// a substitute for the one asked for. Vectors are f32; sensitive matrices keep the floats they have.
pub fn choose(name: &str, shape: &[u64], from: DType, default: DType, rules: &Rules) -> (DType, bool) {
    let matrix = shape.iter().filter(|&&d| d > 1).count() >= 2;
    let asked = match rules.iter().find(|r| r.matches(name)) {
        _ if !matrix => DType::F32,
        Some(r) => r.to,
        None if KEPT.iter().any(|k| name.contains(k)) => match from {
            DType::BF16 | DType::F16 => from,
            _ => DType::F32,
        },
        None => default,
    };
    let row = shape.last().copied().unwrap_or(1);
    let got = fitting(asked, row);
    (got, got != asked)
}

/// The nearest type whose blocks divide a row: K-quants step down to the 32-element type of like size, as in files that
/// others make; rows that no block divides are bf16.
fn fitting(asked: DType, row: u64) -> DType {
    let mut t = asked;
    while !row.is_multiple_of(t.elems() as u64) {
        t = match t {
            DType::Block(Block::Q4K) => DType::Block(Block::Q5_0),
            DType::Block(Block::Q5K) => DType::Block(Block::Q5_1),
            DType::Block(Block::Q6K) => DType::Block(Block::Q8_0),
            _ => DType::BF16,
        };
    }
    t
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_rule_that_matches_wins() {
        let rules = vec![Rule::parse("blk.*.ffn_down=q8_0").unwrap(), Rule::parse("blk=q5_0").unwrap()];
        let q4 = parse_type("q4_0").unwrap();
        let of = |name: &str| choose(name, &[64, 64], DType::F32, q4, &rules).0;
        assert_eq!(of("blk.3.ffn_down.weight"), parse_type("q8_0").unwrap());
        assert_eq!(of("blk.3.attn_q.weight"), parse_type("q5_0").unwrap());
        assert_eq!(of("token_embd.weight"), q4);
    }

    #[test]
    fn vectors_routers_and_norms_stay_floats() {
        let q4 = parse_type("q4_0").unwrap();
        for (name, shape) in [("output_norm.weight", [1u64, 64]), ("blk.0.ffn_gate_inp.weight", [8, 64])] {
            assert_eq!(choose(name, &shape, DType::F32, q4, &vec![]), (DType::F32, false));
        }
    }

    #[test]
    fn a_router_in_half_precision_is_not_inflated() {
        let q4 = parse_type("q4_0").unwrap();
        assert_eq!(choose("blk.0.ffn_gate_inp.weight", &[8, 64], DType::BF16, q4, &vec![]), (DType::BF16, false));
    }

    #[test]
    fn rows_that_do_not_divide_get_a_type_that_does_and_it_is_said() {
        let q4k = parse_type("q4_k").unwrap();
        assert_eq!(choose("output.weight", &[64, 512], DType::F32, q4k, &vec![]), (q4k, false));
        assert_eq!(choose("output.weight", &[64, 96], DType::F32, q4k, &vec![]), (parse_type("q5_0").unwrap(), true));
        assert_eq!(choose("output.weight", &[64, 100], DType::F32, q4k, &vec![]), (DType::BF16, true));
    }

    #[test]
    fn a_bad_rule_says_what_is_wrong() {
        assert!(Rule::parse("blk").unwrap_err().to_string().contains("PATTERN=TYPE"));
        assert!(Rule::parse("a=q9_9").unwrap_err().to_string().contains("q4_0"));
    }
}
