//! Bounds of numbers, written so that the grammar's compiler keeps them.
//!
//! The compiler takes an exclusive bound for an inclusive one where the other bound has the same whole part (`0 < x < 0.01`
//! let 0 pass), and a decimal that is near enough to a bound is the bound once a client has made a float of it. So exclusive
//! bounds become inclusive ones a small step inside. What lies between the bound and the step is not offered.

use serde_json::{Map, Value};

/// Beyond this, whole numbers are not exact as floats, in which clients and validators compare.
const MAX_EXACT: f64 = 9_007_199_254_740_992.0;
/// Digits behind the point that the compiler compares.
const MAX_DECIMALS: usize = 17;
/// Digits a float is sure to keep.
const SURE_DIGITS: usize = 15;
/// Decimals of a step, beyond those of its bound.
const FINER: usize = 9;

/// The bounds of a schema that cannot be kept, and why.
pub(super) fn unreachable(m: &Map<String, Value>) -> impl Iterator<Item = (&'static str, String)> {
    ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"].into_iter().filter_map(move |key| {
        let bound = m.get(key)?.as_f64()?;
        let exclusive = key.starts_with("exclusive") || m.get(exclusive_of(key)) == Some(&Value::Bool(true));
        let why = match () {
            () if bound.abs() > MAX_EXACT => "lies beyond the numbers that are exact",
            () if decimals(bound) > MAX_DECIMALS => "has more decimals than can be told apart",
            () if exclusive && !is_integer(m) && inside(bound, 1.0).is_none() => {
                "has so many digits that the number next to it cannot be told from it"
            }
            () => return None,
        };
        Some((key, format!("{bound} {why}")))
    })
}

/// Turns exclusive bounds into inclusive ones. Those of integers are left: the compiler keeps them.
pub(super) fn rewrite(m: &mut Map<String, Value>) {
    if is_integer(m) {
        return;
    }
    for (plain, direction) in [("minimum", 1.0), ("maximum", -1.0)] {
        let exclusive = exclusive_of(plain);
        let own = m.get(plain).and_then(Value::as_f64);
        // Draft 4 says whether the plain bound is exclusive.
        let bound = match m.get(exclusive) {
            Some(Value::Bool(true)) => own,
            Some(v) => v.as_f64(),
            None => None,
        };
        let Some(stepped) = bound.and_then(|b| inside(b, direction)) else { continue };
        let tighter = own.map_or(stepped, |o| if direction > 0.0 { o.max(stepped) } else { o.min(stepped) });
        m.shift_remove(exclusive);
        m.insert(plain.into(), tighter.into());
    }
}

fn exclusive_of(plain: &str) -> &'static str {
    if plain == "minimum" { "exclusiveMinimum" } else { "exclusiveMaximum" }
}

fn is_integer(m: &Map<String, Value>) -> bool {
    m.get("type").is_some_and(|t| t == "integer")
}

/// The decimal a small step from a bound, up (1) or down (-1).
fn inside(bound: f64, direction: f64) -> Option<f64> {
    let whole = format!("{:.0}", bound.abs().trunc()).len();
    let fine = (decimals(bound) + FINER).min(SURE_DIGITS.checked_sub(whole)?);
    if fine < decimals(bound) {
        return None;
    }
    let step = direction * 10f64.powi(-(fine as i32));
    // By way of its text, so that it is a short decimal again.
    let stepped: f64 = format!("{:.fine$}", bound + step).parse().ok()?;
    ((stepped - bound) * direction > 0.0).then_some(stepped)
}

fn decimals(x: f64) -> usize {
    format!("{x}").split_once('.').map_or(0, |(_, d)| d.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn exclusive_bounds_become_inclusive_a_step_inside() {
        for (given, right) in [
            (
                json!({"exclusiveMinimum": 0, "exclusiveMaximum": 0.01}),
                json!({"minimum": 1e-9, "maximum": 0.00999999999}),
            ),
            (json!({"exclusiveMinimum": 5}), json!({"minimum": 5.000000001})),
            (json!({"exclusiveMaximum": -0.5}), json!({"maximum": -0.5000000001})),
            (json!({"minimum": 1, "exclusiveMinimum": true}), json!({"minimum": 1.000000001})),
            (json!({"minimum": 9, "exclusiveMinimum": 1}), json!({"minimum": 9.0})),
            (json!({"exclusiveMinimum": 1e12}), json!({"minimum": 1000000000000.01})),
            (json!({"type": "integer", "exclusiveMinimum": 1}), json!({"type": "integer", "exclusiveMinimum": 1})),
        ] {
            let mut m = given.as_object().unwrap().clone();
            assert_eq!(unreachable(&m).count(), 0, "{given}");
            rewrite(&mut m);
            assert_eq!(Value::Object(m), right, "{given}");
        }
    }

    #[test]
    fn bounds_that_cannot_be_kept_are_named() {
        for (given, key) in [
            (json!({"exclusiveMinimum": 9e15}), "exclusiveMinimum"),
            (json!({"maximum": 1e16}), "maximum"),
            (json!({"minimum": 1e-18}), "minimum"),
            (json!({"maximum": 0.1234567890123456, "exclusiveMaximum": true}), "maximum"),
        ] {
            assert_eq!(unreachable(given.as_object().unwrap()).map(|f| f.0).collect::<Vec<_>>(), [key], "{given}");
        }
    }
}
