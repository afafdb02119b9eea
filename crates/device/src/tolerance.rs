//! Every tolerance by which a backend may differ from the reference, each with its reason. Tests name one of these and
//! never a number of their own.

/// Products with f32, f16 or bf16 weights, relative to `|x| . |w|` of the element: f32 sums in some fixed order against
/// f64 sums. Each of up to a few thousand additions over 8 or more accumulators rounds by at most 2^-24 of the partial
/// sum, which stays well below this.
pub const LINEAR_FLOAT: f32 = 1e-5;

/// Products with block formats against an exact product with the same eight-bit activations, relative to `|x| |w|`:
/// dot products of groups are exact, so what is left are a few f32 roundings per group of 32. Where a format adds an
/// offset to codes that are never negative, the two parts cancel and each is up to a few times larger than the sum.
pub const LINEAR_BLOCK: f32 = 1e-5;
