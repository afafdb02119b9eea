//! The counter-based generator of weights. `scripts/tinygen.py` holds the same one; both must agree bit for bit.

const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// Fills `out` with the values of the tensor called `name`: `out[i] = u(i) * 2^scale_log2 + offset`, where `u(i)` is a
/// multiple of 2^-23 in [-1, 1).
///
/// All integers are 64 bits wide and wrap:
///
/// ```text
/// fnv(name) = FNV-1a: h = 0xcbf29ce484222325; for each byte of the UTF-8 name: h = (h ^ byte) * 0x100000001b3
/// mix(z)    = SplitMix64's finaliser: z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
///                                     z = (z ^ z >> 27) * 0x94d049bb133111eb;  z ^ z >> 31
/// key       = mix(fnv(name) ^ seed * 0x9E3779B97F4A7C15)
/// bits(i)   = mix(key + (i + 1) * 0x9E3779B97F4A7C15) >> 40          24 bits
/// u(i)      = (bits(i) - 2^23) / 2^23                                exact in f32
/// ```
///
/// The product with a power of two is exact (while `scale_log2` stays within -100..=100), so the addition of `offset`
/// is the only rounding, to nearest even in f32.
pub fn fill(seed: u64, name: &str, scale_log2: i32, offset: f32, out: &mut [f32]) {
    let key = mix(fnv1a(name.as_bytes()) ^ seed.wrapping_mul(GOLDEN));
    let unit = 2f32.powi(scale_log2 - 23);
    for (i, v) in (1u64..).zip(out) {
        let bits = mix(key.wrapping_add(i.wrapping_mul(GOLDEN))) >> 40;
        *v = (bits as i32 - (1 << 23)) as f32 * unit + offset;
    }
}

fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, &b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3))
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_and_finaliser_match_their_published_vectors() {
        // FNV-1a test vectors of its authors; first outputs of SplitMix64 seeded with 0.
        assert_eq!(fnv1a(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a(b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(fnv1a(b"foobar"), 0x8594_4171_f739_67e8);
        assert_eq!(mix(GOLDEN), 0xe220_a839_7b1d_cdaf);
        assert_eq!(mix(GOLDEN.wrapping_mul(2)), 0x6e78_9e6a_a1b9_65f4);
    }

    #[test]
    fn values_are_centred_scaled_and_depend_on_name_and_seed() {
        let draw = |seed, name| {
            let mut v = vec![0f32; 4096];
            fill(seed, name, -2, 1.0, &mut v);
            v
        };
        let v = draw(7, "model.norm.weight");
        assert!(v.iter().all(|x| (0.75..1.25).contains(x)));
        let mean = v.iter().sum::<f32>() / 4096.0;
        assert!((mean - 1.0).abs() < 0.01, "{mean}");
        assert_ne!(v, draw(8, "model.norm.weight"));
        assert_ne!(v, draw(7, "model.norm.weighu"));
        let mut short = vec![0f32; 100];
        fill(7, "model.norm.weight", -2, 1.0, &mut short);
        assert_eq!(short, v[..100], "a value depends on its index alone");
    }
}
