//! Every tolerance by which a backend may differ from the reference, each with its reason. Tests name one of these and
//! never a number of their own.

/// Products with f32, f16 or bf16 weights, relative to `|x| . |w|` of the element: f32 sums in some fixed order against
/// f64 sums. Each of up to a few thousand additions over 8 or more accumulators rounds by at most 2^-24 of the partial
/// sum, which stays well below this.
pub const LINEAR_FLOAT: f32 = 1e-5;

/// Products with block formats against an exact product with the same fifteen-bit activations, relative to `|x| |w|`:
/// dot products of groups are exact, so what is left are a few f32 roundings per group of 32. Where a format adds an
/// offset to codes that are never negative, the two parts cancel and each is up to a few times larger than the sum.
pub const LINEAR_BLOCK: f32 = 1e-5;

/// Products of many rows on tensor cores, relative to `|x| |w|`: both operands are rounded to bf16 (2^-9 each at most), and
/// the roundings of some hundred to thousand products add up like their root.
pub const LINEAR_BF16: f32 = 4e-3;

// The tolerances below are relative to the element plus the root mean square of its operand.

/// Norms: a few hundred to a few thousand squares summed in f32 in some fixed order, then two roundings.
pub const RMS_NORM: f32 = 1e-6;
/// Rotations: two products and a sum per element, angles exact to the last bits.
pub const ROPE: f32 = 1e-6;
/// `silu` and `sigmoid` times something: an exponential within 2 units of the last place, a quotient, one or two products.
pub const ACTIVATION: f32 = 1e-6;
/// Router weights: the exponential as above, of a difference of logits that is rounded once, and a quotient.
pub const ROUTE: f32 = 2e-6;
/// Sums over ranks: as many roundings as ranks.
pub const COMBINE: f32 = 1e-6;
/// Convolutions: a handful of products, then `silu`.
pub const CONV: f32 = 1e-6;
/// Attention: the rounding of a score of size s moves its weight by s units of the last place, and scores of the grid reach
/// about 10; weighted sums of thousands of values are then rounded in f32 order.
pub const ATTENTION: f32 = 1e-5;
/// Attention of many rows on tensor cores: queries and weights are rounded to bf16 (2^-9). A score of about 10 is off by up to
/// some hundredths, and so is its weight.
pub const ATTENTION_BF16: f32 = 3e-2;
/// Attention over rotated formats against the dequantised vectors, relative to the magnitude of the stored values: the
/// rotations round each element a few times, and kernels may compute with codes and queries of 14 to 16 bits.
pub const ATTENTION_ROTATED: f32 = 1e-4;
/// The gated delta rule: errors of a step are carried on by the state, and the chunked form solves a triangular system
/// of up to 64 rows instead of stepping.
pub const GATED_DELTA: f32 = 2e-5;
