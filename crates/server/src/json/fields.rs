//! Reads fields of a JSON object and says which one is wrong.

use serde_json::{Map, Value};

use super::kind;
use crate::fault::Fault;

/// An object and the path to it. Absent and null are the same.
#[derive(Clone, Debug)]
pub struct Fields<'a> {
    map: &'a Map<String, Value>,
    path: String,
}

impl<'a> Fields<'a> {
    /// The fields of a body.
    pub fn of(map: &'a Map<String, Value>) -> Self {
        Self { map, path: String::new() }
    }

    /// The path of a field.
    pub fn path(&self, name: &str) -> String {
        if self.path.is_empty() { name.into() } else { format!("{}.{name}", self.path) }
    }

    /// A fault about a field.
    pub fn wrong(&self, name: &str, what: impl std::fmt::Display) -> Fault {
        Fault::field(self.path(name), what)
    }

    fn must_be(&self, name: &str, what: &str, v: &Value) -> Fault {
        self.wrong(name, format_args!("must be {what}, not {}", kind(v)))
    }

    /// Any value.
    pub fn get(&self, name: &str) -> Option<&'a Value> {
        self.map.get(name).filter(|v| !v.is_null())
    }

    fn typed<T>(&self, name: &str, what: &str, read: impl FnOnce(&'a Value) -> Option<T>) -> Result<Option<T>, Fault> {
        let Some(v) = self.get(name) else { return Ok(None) };
        read(v).map(Some).ok_or_else(|| self.must_be(name, what, v))
    }

    /// A string.
    pub fn str(&self, name: &str) -> Result<Option<&'a str>, Fault> {
        self.typed(name, "a string", Value::as_str)
    }

    /// A boolean.
    pub fn bool(&self, name: &str) -> Result<Option<bool>, Fault> {
        self.typed(name, "true or false", Value::as_bool)
    }

    /// An array.
    pub fn array(&self, name: &str) -> Result<Option<&'a [Value]>, Fault> {
        self.typed(name, "an array", |v| v.as_array().map(Vec::as_slice))
    }

    /// An object.
    pub fn object(&self, name: &str) -> Result<Option<Fields<'a>>, Fault> {
        let map = self.typed(name, "an object", Value::as_object)?;
        Ok(map.map(|map| Self { map, path: self.path(name) }))
    }

    /// The objects of an array.
    pub fn objects(&self, name: &str) -> Result<Vec<Fields<'a>>, Fault> {
        let items = self.array(name)?.unwrap_or_default().iter().enumerate();
        let object = |(i, v): (usize, &'a Value)| {
            let path = format!("{}[{i}]", self.path(name));
            match v.as_object() {
                Some(map) => Ok(Self { map, path }),
                None => Err(Fault::field(path, format_args!("must be an object, not {}", kind(v)))),
            }
        };
        items.map(object).collect()
    }

    /// A number in a range.
    pub fn f32(&self, name: &str, lo: f32, hi: f32) -> Result<Option<f32>, Fault> {
        let Some(x) = self.typed(name, "a number", Value::as_f64)? else { return Ok(None) };
        if x >= f64::from(lo) && x <= f64::from(hi) {
            return Ok(Some(x as f32));
        }
        Err(self.wrong(name, format_args!("is {x}; allowed is {lo} to {hi}")))
    }

    /// A whole number in a range; `5.0` is one.
    pub fn int(&self, name: &str, lo: i64, hi: i64) -> Result<Option<i64>, Fault> {
        let Some(v) = self.get(name) else { return Ok(None) };
        let float = || v.as_f64().filter(|x| x.fract() == 0.0 && x.abs() < 9e15).map(|x| x as i64);
        let Some(n) = v.as_i64().or_else(float) else {
            // Beyond i64 it is still a whole number, only out of range.
            let huge = v.as_f64().is_some_and(|x| x.fract() == 0.0);
            return Err(if huge {
                self.wrong(name, format_args!("is {v}; allowed is {lo} to {hi}"))
            } else {
                self.wrong(name, format_args!("must be a whole number, not {v}"))
            });
        };
        if (lo..=hi).contains(&n) {
            Ok(Some(n))
        } else {
            Err(self.wrong(name, format_args!("is {n}; allowed is {lo} to {hi}")))
        }
    }

    /// A limit on tokens: 0 and more; what is larger than any context counts as no limit of its own.
    pub fn tokens(&self, name: &str) -> Result<Option<u32>, Fault> {
        let most = i64::MAX;
        Ok(self.int(name, 0, most)?.map(|n| u32::try_from(n).unwrap_or(u32::MAX)))
    }

    /// The whole object.
    pub fn map(&self) -> &'a Map<String, Value> {
        self.map
    }
}
