//! Where Python's Jinja2 and this engine differ in small things.

use minijinja::{Error, Output, State, Value, value::ValueKind};

use super::json;

/// Prints a value; floats as Python does, everything else as the engine does.
pub fn print(out: &mut Output, state: &mut State, value: &Value) -> Result<(), Error> {
    if value.kind() == ValueKind::Number && !value.is_integer() {
        let x = f64::try_from(value.clone()).unwrap_or(f64::NAN);
        let text = match x {
            x if x.is_nan() => "nan".to_owned(),
            x if x.is_infinite() => if x > 0.0 { "inf" } else { "-inf" }.to_owned(),
            x => json::float(x),
        };
        return out.write_str(&text).map_err(Error::from);
    }
    minijinja::escape_formatter(out, state, value)
}

/// `iter(value)` works: on strings and on nothing at all, but not on None.
pub fn is_iterable(value: &Value) -> bool {
    matches!(
        value.kind(),
        ValueKind::Seq | ValueKind::Map | ValueKind::Iterable | ValueKind::String | ValueKind::Undefined
    )
}

/// `len(value)` and `value[0]` work, which includes strings and mappings.
pub fn is_sequence(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::String | ValueKind::Undefined)
}
