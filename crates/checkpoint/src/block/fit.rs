//! Finding scales and offsets that keep the (weighted) squared error small. Every search tries a few grids, takes the nearest codes on each, then lets
//! least squares move the grid to those codes, and keeps the best grid as it will be stored.

/// `x` rounded to an integer, for `|x|` below 2^22: adding 1.5 * 2^23 leaves no room for a fraction. Unlike `f32::round` it vectorises everywhere.
#[inline]
fn nearest(x: f32) -> f32 {
    const SHIFT: f32 = 12_582_912.0;
    (x + SHIFT) - SHIFT
}

/// The nearest code in `lo..=hi`. Not `clamp`, whose check of the bounds keeps loops from being vectorised.
#[inline(always)]
fn grid_code(x: f32, lo: f32, hi: f32) -> f32 {
    nearest(x.max(lo).min(hi))
}

/// Codes `lo..=hi` of the values on the grid `step * q + offset`; all 0 (clamped) on a grid without a step.
#[inline]
pub(super) fn codes<const N: usize>(x: &[f32; N], step: f32, offset: f32, lo: f32, hi: f32) -> [f32; N] {
    let inv = inverse(step);
    x.map(|x| grid_code((x - offset) * inv, lo, hi))
}

#[inline]
fn inverse(step: f32) -> f32 {
    let inv = 1.0 / step;
    if inv.is_finite() { inv } else { 0.0 }
}

/// The value of largest magnitude, with its sign.
pub(super) fn extreme(x: &[f32]) -> f32 {
    x.iter().copied().fold(0.0, |m: f32, x| if x.abs() > m.abs() { x } else { m })
}

/// Least-squares `d` of `x = d * a`; 0 if `a` is zero.
pub(super) fn slope(x: &[f32], a: &[f32]) -> f32 {
    let (xa, aa) = x.iter().zip(a).fold((0.0, 0.0), |(xa, aa), (x, a)| (xa + x * a, aa + a * a));
    if aa > 0.0 { xa / aa } else { 0.0 }
}

/// Least-squares `(d, e)` of `x = d * a + e * b`; `None` if `a` and `b` are not independent.
pub(super) fn plane(x: &[f32], a: &[f32], b: &[f32]) -> Option<(f32, f32)> {
    let mut s = [0f64; 5];
    for ((x, a), b) in x.iter().zip(a).zip(b) {
        let (x, a, b) = (f64::from(*x), f64::from(*a), f64::from(*b));
        for (s, v) in s.iter_mut().zip([x * a, x * b, a * a, a * b, b * b]) {
            *s += v;
        }
    }
    let [xa, xb, aa, ab, bb] = s;
    let det = aa * bb - ab * ab;
    (det > 1e-9 * aa * bb).then(|| (((bb * xa - ab * xb) / det) as f32, ((aa * xb - ab * xa) / det) as f32))
}

/// Sums `K` terms over `N` elements in eight running lanes each, which lets the compiler use vector registers (a single running sum may not be reordered).
#[inline(always)]
fn sums<const N: usize, const K: usize>(term: impl Fn(usize) -> [f32; K]) -> [f32; K] {
    const LANES: usize = 8;
    let mut acc = [[0.0; LANES]; K];
    for base in (0..N).step_by(LANES) {
        let terms: [[f32; K]; LANES] = std::array::from_fn(|lane| term(base + lane));
        for (k, acc) in acc.iter_mut().enumerate() {
            for (sum, t) in acc.iter_mut().zip(&terms) {
                *sum += t[k];
            }
        }
    }
    acc.map(|lanes| lanes.iter().sum())
}

/// Weighted squared error of the nearest codes on a grid.
fn error<const N: usize>(x: &[f32; N], w: &[f32; N], step: f32, offset: f32, lo: f32, hi: f32) -> f32 {
    let inv = inverse(step);
    let [sum] = sums::<N, 1>(|i| {
        let q = grid_code((x[i] - offset) * inv, lo, hi);
        let e = x[i] - (step * q + offset);
        [w[i] * e * e]
    });
    sum
}

/// Scale of the grid `d * q`, `q` in `lo..=hi` with `-lo > hi`, as `stored` rounds it. The scale may be negative, which puts the extreme value at the longer end.
///
/// The extreme value is tried at steps of a sixteenth of the range over its outer part, on both sides.
pub(super) fn signed<const N: usize>(x: &[f32; N], w: [f32; N], lo: f32, hi: f32, stored: impl Fn(f32) -> f32) -> f32 {
    let m = extreme(x);
    if m == 0.0 {
        return 0.0;
    }
    let mut best = (f32::INFINITY, 0.0);
    let mut offer = |d: f32| {
        let d = stored(d);
        let e = error(x, &w, d, 0.0, lo, hi);
        if e < best.0 {
            best = (e, d);
        }
    };
    for sixteenth in 10..=16 {
        for sign in [-1.0, 1.0] {
            let at = sign * -lo * sixteenth as f32 / 16.0;
            if at > hi + 0.5 {
                continue;
            }
            offer(m / at);
            let q = codes(x, m / at, 0.0, lo, hi);
            offer(weighted_slope(x, &w, &q));
        }
    }
    best.1
}

/// Which offsets a format can store.
#[derive(Copy, Clone, PartialEq)]
pub(super) enum Offset {
    Free,
    NonPositive,
}

/// Scale and offset of the grid `d * q + m`, `q` in `0..=top`, `d >= 0`, as `stored` rounds them.
///
/// The spread of the values is laid over a little less to a little more than all codes.
pub(super) fn offset<const N: usize>(
    x: &[f32; N],
    w: [f32; N],
    top: f32,
    kind: Offset,
    stored: impl Fn(f32) -> f32,
) -> (f32, f32) {
    let ceiling = if kind == Offset::NonPositive { 0.0 } else { f32::INFINITY };
    let lo = x.iter().copied().fold(ceiling, f32::min);
    let hi = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let span = hi - lo;
    if span <= 0.0 || !(top / span).is_finite() {
        return (0.0, stored(lo));
    }
    let mut best = (f32::INFINITY, (0.0, stored(lo)));
    let mut offer = |d: f32, m: f32| {
        let (d, m) = (stored(d), stored(m));
        let e = error(x, &w, d, m, 0.0, top);
        if d >= 0.0 && e < best.0 {
            best = (e, (d, m));
        }
    };
    for sixtieth in (42..=64).step_by(2) {
        let d = span / (top * sixtieth as f32 / 60.0);
        offer(d, lo);
        let q = codes(x, d, lo, 0.0, top);
        if let Some((d, m)) = line(x, &w, &q) {
            if m > ceiling { offer(weighted_slope(x, &w, &q), 0.0) } else { offer(d, m) }
        }
    }
    best.1
}

/// Weighted least-squares `(d, m)` of `x = d * q + m`.
fn line<const N: usize>(x: &[f32; N], w: &[f32; N], q: &[f32; N]) -> Option<(f32, f32)> {
    let [sw, sx, sq, sqq, sxq] = sums::<N, 5>(|i| {
        let wq = w[i] * q[i];
        [w[i], w[i] * x[i], wq, wq * q[i], wq * x[i]]
    });
    let det = sw * sqq - sq * sq;
    (det > 0.0).then(|| ((sw * sxq - sx * sq) / det, (sqq * sx - sq * sxq) / det))
}

/// Weighted least-squares `d` of `x = d * q`; 0 if all codes are.
fn weighted_slope<const N: usize>(x: &[f32; N], w: &[f32; N], q: &[f32; N]) -> f32 {
    let [xq, qq] = sums::<N, 2>(|i| [w[i] * q[i] * x[i], w[i] * q[i] * q[i]]);
    if qq > 0.0 { xq / qq } else { 0.0 }
}
