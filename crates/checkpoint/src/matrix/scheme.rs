//! What `config.json` says about quantisation, as far as tensors do not say it themselves.

use serde_json::{Map, Value};

/// How MLX stored the matrices of one path.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) struct Mlx {
    pub bits: u32,
    pub group: u32,
    pub mode: Mode,
}

/// MLX's modes.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Mode {
    Affine,
    Mxfp4,
    Mxfp8,
    Nvfp4,
    /// Another, which is refused where it is met.
    Unknown,
}

/// The quantisation settings of a checkpoint.
#[derive(Clone, Default, Debug)]
pub(crate) struct Scheme {
    /// `quant_method`, for messages.
    method: Option<String>,
    /// Rows and columns of an FP8 tile.
    pub(super) tile: Option<[u32; 2]>,
    /// MLX's settings for paths that have none of their own.
    mlx: Option<Mlx>,
    /// Those of single paths.
    paths: Vec<(String, Mlx)>,
}

impl Scheme {
    /// From the whole configuration, or its text part; what cannot be understood is left out and missed where it is needed.
    pub fn of(config: Option<&Value>) -> Self {
        let mut all = Self::default();
        let Some(config) = config else { return all };
        let places = [Some(config), config.get("text_config")];
        for (place, key) in places.into_iter().flatten().flat_map(|p| [(p, "quantization"), (p, "quantization_config")])
        {
            if let Some(q) = place.get(key).and_then(Value::as_object) {
                all.read(q);
            }
        }
        all
    }

    fn read(&mut self, q: &Map<String, Value>) {
        let method = q.get("quant_method").or_else(|| q.get("quant_algo")).and_then(Value::as_str);
        self.method = self.method.take().or_else(|| method.map(str::to_string));
        let tile = q.get("weight_block_size").and_then(Value::as_array).and_then(|a| match a.as_slice() {
            [n, k] => Some([u32::try_from(n.as_u64()?).ok()?, u32::try_from(k.as_u64()?).ok()?]),
            _ => None,
        });
        self.tile = self.tile.or(tile);
        if self.mlx.is_none() {
            self.mlx = mlx(q, None);
            let default = self.mlx;
            let own = |(path, v): (&String, &Value)| Some((path.clone(), mlx(v.as_object()?, default)?));
            self.paths = q.iter().filter_map(own).collect();
        }
    }

    /// `quant_method` in a message, where there is one.
    pub fn named(&self) -> String {
        self.method.as_ref().map_or_else(String::new, |m| format!(" (quant_method '{m}')"))
    }

    /// MLX's settings for a module path. Checkpoints of multimodal models put a root before the path that their configuration may lack, and the other
    /// way round.
    pub(super) fn mlx(&self, path: &str) -> Option<Mlx> {
        let ends = |long: &str, short: &str| {
            long.strip_suffix(short).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
        };
        let exact = self.paths.iter().find(|(p, _)| p == path);
        let own = exact.or_else(|| self.paths.iter().find(|(p, _)| ends(path, p) || ends(p, path)));
        own.map(|(_, m)| *m).or(self.mlx)
    }
}

fn mlx(q: &Map<String, Value>, default: Option<Mlx>) -> Option<Mlx> {
    let number = |key: &str| q.get(key).and_then(Value::as_u64).and_then(|n| u32::try_from(n).ok());
    let mode = match q.get("mode").and_then(Value::as_str) {
        None => default.map_or(Mode::Affine, |d| d.mode),
        Some("affine") => Mode::Affine,
        Some("mxfp4") => Mode::Mxfp4,
        Some("mxfp8") => Mode::Mxfp8,
        Some("nvfp4") => Mode::Nvfp4,
        Some(_) => Mode::Unknown,
    };
    // A path's own settings may leave out what is as everywhere, but not everything.
    let any = q.contains_key("bits") || q.contains_key("group_size");
    let bits = number("bits").or(default.map(|d| d.bits))?;
    let group = number("group_size").or(default.map(|d| d.group))?;
    any.then_some(Mlx { bits, group, mode })
}
