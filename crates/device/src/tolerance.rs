//! Every tolerance by which a backend may differ from the reference, each with its reason. Tests name one of these and
//! never a number of their own.

/// Products with f32, f16 or bf16 weights, relative to `|x| . |w|` of the element: f32 sums in some fixed order against
/// f64 sums. Each of up to a few thousand additions over 8 or more accumulators rounds by at most 2^-24 of the partial
/// sum, which stays well below this.
pub const LINEAR_FLOAT: f32 = 1e-5;
