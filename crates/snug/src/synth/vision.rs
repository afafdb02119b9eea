//! The tensors of Qwen's vision tower, so that a synthetic checkpoint holds what a real one does. Nothing here computes
//! with them: the language model names them and passes them by.

use serde_json::Value;

/// Names and shapes by `vision_config`; none where a configuration has no tower.
pub fn tensors(config: &Value) -> Vec<(String, Vec<u64>)> {
    let Some(v) = config.get("vision_config") else { return Vec::new() };
    let get = |name: &str| v[name].as_u64().unwrap_or(0);
    let (h, inner, merged) =
        (get("hidden_size"), get("intermediate_size"), get("hidden_size") * get("spatial_merge_size").pow(2));
    let mut all = Vec::new();
    let mut put = |name: String, shape: &[u64]| all.push((format!("model.visual.{name}"), shape.to_vec()));
    let patch = [h, get("in_channels"), get("temporal_patch_size"), get("patch_size"), get("patch_size")];
    put("patch_embed.proj.weight".into(), &patch);
    put("patch_embed.proj.bias".into(), &[h]);
    put("pos_embed.weight".into(), &[get("num_position_embeddings"), h]);
    for l in 0..get("depth") {
        let mut both = |name: &str, shape: &[u64]| {
            put(format!("blocks.{l}.{name}.weight"), shape);
            put(format!("blocks.{l}.{name}.bias"), &shape[..1]);
        };
        both("norm1", &[h]);
        both("attn.qkv", &[3 * h, h]);
        both("attn.proj", &[h, h]);
        both("norm2", &[h]);
        both("mlp.linear_fc1", &[inner, h]);
        both("mlp.linear_fc2", &[h, inner]);
    }
    let mut both = |name: &str, shape: &[u64]| {
        put(format!("merger.{name}.weight"), shape);
        put(format!("merger.{name}.bias"), &shape[..1]);
    };
    both("norm", &[h]);
    both("linear_fc1", &[merged, merged]);
    both("linear_fc2", &[get("out_hidden_size"), merged]);
    all
}
