//! Lloyd-Max centroids for one coordinate of a uniform unit vector in R^d, whose density is proportional to
//! `(1 - t^2)^((d - 3) / 2)`: sixteen, symmetric, in units of `1 / sqrt(d)`. A test computes them anew.

/// Centroids of one width.
#[derive(Debug)]
pub struct Table {
    /// All sixteen, ascending.
    pub centroids: [f32; 16],
    /// Points halfway between neighbours.
    pub middles: [f32; 15],
    /// Expected squared error of a vector, relative to its own square.
    pub error: f64,
}

const fn table(half: [f64; 8], error: f64) -> Table {
    let (mut centroids, mut middles) = ([0.0; 16], [0.0; 15]);
    let mut i = 0;
    while i < 8 {
        centroids[8 + i] = half[i] as f32;
        centroids[7 - i] = -(half[i] as f32);
        i += 1;
    }
    i = 0;
    while i < 15 {
        middles[i] = (centroids[i] + centroids[i + 1]) * 0.5;
        i += 1;
    }
    Table { centroids, middles, error }
}

static D64: Table =
    table([0.1273522, 0.3847183, 0.6504941, 0.9318940, 1.2394042, 1.5908491, 2.0233098, 2.6463705], 0.009132);
static D128: Table =
    table([0.1278732, 0.3863809, 0.6536189, 0.9370970, 1.2477705, 1.6043427, 2.0459254, 2.6888593], 0.009315);
static D256: Table =
    table([0.1281340, 0.3872140, 0.6551872, 0.9397137, 1.2519890, 1.6111681, 2.0574112, 2.7105670], 0.009408);
static D512: Table =
    table([0.1282645, 0.3876310, 0.6559727, 0.9410258, 1.2541072, 1.6146006, 2.0631991, 2.7215386], 0.009454);

/// The table of a width, 64, 128, 256 or 512; of the next one for others.
pub fn of(d: usize) -> &'static Table {
    match d {
        0..=64 => &D64,
        65..=128 => &D128,
        129..=256 => &D256,
        _ => &D512,
    }
}
