//! Numbers of eight bits and fewer.

use crate::block::E2M1_VALUES;

/// OCP FP8 E4M3: bias 7, subnormals of 2^-9, 0x7F and 0xFF are NaN.
pub fn e4m3(b: u8) -> f32 {
    let (sign, e, m) = (b & 0x80, i32::from(b >> 3 & 15), f32::from(b & 7));
    let magnitude = match (e, b & 7) {
        (15, 7) => f32::NAN,
        (0, _) => m * 2f32.powi(-9),
        _ => (1.0 + m / 8.0) * 2f32.powi(e - 7),
    };
    if sign == 0 { magnitude } else { -magnitude }
}

/// The E4M3 code nearest to `x`, ties to even, at most 448 in magnitude; NaN for NaN.
pub fn to_e4m3(x: f32) -> u8 {
    if x.is_nan() {
        return 0x7F;
    }
    let a = x.abs().min(448.0);
    // The step between codes around `a`: an eighth of its power of two, and 2^-9 below the normal numbers.
    let power = ((a.to_bits() >> 23) as i32 - 127).max(-6);
    let steps = (f64::from(a) / 2f64.powi(power - 3)).round_ties_even() as i32;
    // Eight steps of the subnormals are the first normal number, and sixteen of any power the next one.
    let code = ((power + 6) * 8 + steps) as u8;
    if x.is_sign_negative() { code | 0x80 } else { code }
}

/// OCP E8M0: 2^(e-127); 255 is NaN. 2^-127 is a subnormal f32.
pub fn e8m0(e: u8) -> f32 {
    match e {
        0 => f32::from_bits(0x0040_0000),
        255 => f32::NAN,
        _ => f32::from_bits(u32::from(e) << 23),
    }
}

/// The E2M1 code whose value is nearest to `v`.
pub fn to_e2m1(v: f32) -> u8 {
    // Halfway points between neighbouring magnitudes; ties go to the even code, as in IEEE rounding.
    const BOUNDS: [(f32, bool); 7] =
        [(0.25, false), (0.75, true), (1.25, false), (1.75, true), (2.5, false), (3.5, true), (5.0, false)];
    let a = v.abs();
    let code = BOUNDS.iter().take_while(|(b, up)| if *up { a >= *b } else { a > *b }).count() as u8;
    if v < 0.0 && code > 0 { code | 8 } else { code }
}

/// The value of an E2M1 nibble.
pub fn e2m1(q: u8) -> f32 {
    E2M1_VALUES[usize::from(q & 15)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_finite_code_encodes_to_itself() {
        for b in (0..=255u8).filter(|b| b & 0x7F != 0x7F) {
            assert_eq!(to_e4m3(e4m3(b)), b, "{b:#x}");
        }
        for q in (0..16).filter(|q| *q != 8) {
            assert_eq!(to_e2m1(e2m1(q)), q);
        }
    }

    #[test]
    fn values_between_codes_go_to_the_nearest_and_ties_to_even() {
        for b in 0..0x7Eu8 {
            let (low, high) = (e4m3(b), e4m3(b + 1));
            let middle = (low + high) / 2.0;
            assert_eq!(to_e4m3(middle), b + b % 2, "between {low} and {high}");
            assert_eq!((to_e4m3(middle.next_down()), to_e4m3(middle.next_up())), (b, b + 1));
        }
        assert_eq!((to_e4m3(1e9), to_e4m3(-1e9), to_e4m3(f32::NAN)), (0x7E, 0xFE, 0x7F));
    }
}
