//! Geometries of real models, as the `config.json` that each of them has. Everything else follows from it through the
//! model's family.

use super::Wrong;
use serde_json::{Value, json};

/// Id behind the 256 bytes, and what is there: the tokens a ChatML conversation needs.
pub const SPECIALS: [(u32, &str); 3] = [(256, "<|endoftext|>"), (257, "<|im_start|>"), (258, "<|im_end|>")];
/// The least vocabulary: bytes and specials.
pub const LEAST_VOCAB: u32 = 256 + SPECIALS.len() as u32;

/// A model whose sizes can be had.
struct Geometry {
    name: &'static str,
    config: fn() -> Value,
}

const ALL: &[Geometry] = &[
    Geometry { name: "smollm2-135m", config: smollm2_135m },
    Geometry { name: "llama-3.2-1b", config: llama_3_2_1b },
    Geometry { name: "qwen3-30b-a3b", config: qwen3_30b_a3b },
    Geometry { name: "qwen3-next-80b-a3b", config: qwen3_next_80b_a3b },
    Geometry { name: "qwen3.8-27b", config: qwen3_8_27b },
    Geometry { name: "qwen3.6-35b-a3b", config: qwen3_6_35b_a3b },
    Geometry { name: "gemma4-26b-a4b", config: gemma4_26b_a4b },
    Geometry { name: "gemma4-31b", config: gemma4_31b },
    Geometry { name: "gpt-oss-20b", config: || gpt_oss(24, 32) },
    Geometry { name: "gpt-oss-120b", config: || gpt_oss(36, 128) },
    Geometry { name: "glm-4.5-air", config: glm_4_5_air },
];

/// What configurations call the number of routed experts, and how many a row uses.
const EXPERTS: [(&str, &str); 4] = [
    ("num_experts", "num_experts_per_tok"),
    ("num_experts", "top_k_experts"),
    ("num_local_experts", "num_experts_per_tok"),
    ("n_routed_experts", "num_experts_per_tok"),
];

/// Names of the geometries there are.
pub fn names() -> impl Iterator<Item = &'static str> {
    ALL.iter().map(|g| g.name)
}

/// What may be made smaller (or larger) than in the real model.
#[derive(Copy, Clone, Debug, Default)]
pub struct Resize {
    /// Layers.
    pub layers: Option<u32>,
    /// Routed experts of a layer.
    pub experts: Option<u32>,
    /// Length of the vocabulary.
    pub vocab: Option<u32>,
}

/// The configuration of a geometry.
///
/// # Errors
/// A name nobody knows, with those that are; experts of a dense model; a vocabulary without room for the bytes.
pub fn config(name: &str, resize: &Resize) -> Result<Value, Wrong> {
    let Some(g) = ALL.iter().find(|g| g.name.eq_ignore_ascii_case(name)) else {
        let known: Vec<_> = names().collect();
        return Err(Wrong(format!("there is no geometry '{name}'; there are {}", known.join(", "))));
    };
    let mut c = (g.config)();
    let t = text_config(&mut c);
    t["dtype"] = json!("bfloat16");
    t["eos_token_id"] = json!(SPECIALS[2].0);
    t["bos_token_id"] = Value::Null;
    if let Some(n) = resize.layers {
        t["num_hidden_layers"] = json!(n);
        resize_kinds(t, n);
    }
    if let Some(n) = resize.experts {
        let there = |(count, used): &&(&str, &str)| t[*count].is_u64() && t[*used].is_u64();
        let Some((count, used)) = EXPERTS.iter().find(there) else {
            return Err(Wrong(format!("{name} has no routed experts, so --experts means nothing for it")));
        };
        t[*count] = json!(n);
        t[*used] = json!(t[*used].as_u64().map(|k| k.min(n.into())));
    }
    if let Some(n) = resize.vocab {
        t["vocab_size"] = json!(n);
    }
    match t["vocab_size"].as_u64() {
        Some(n) if n >= LEAST_VOCAB.into() => Ok(c),
        _ => Err(Wrong(format!("--vocab must be at least {LEAST_VOCAB}: every byte and the tokens of a conversation"))),
    }
}

/// The language model's part of a configuration.
pub fn text_config(c: &mut Value) -> &mut Value {
    if c.get("text_config").is_some() { &mut c["text_config"] } else { c }
}

/// Kinds of layers follow the number of layers: as they are repeated, the last one as in the real model.
fn resize_kinds(c: &mut Value, n: u32) {
    let Some(kinds) = c["layer_types"].as_array().filter(|k| !k.is_empty()) else { return };
    let mut new: Vec<Value> = kinds.iter().cycle().take(n as usize).cloned().collect();
    if let (Some(last), Some(real)) = (new.last_mut(), kinds.last()) {
        last.clone_from(real);
    }
    c["layer_types"] = Value::Array(new);
}

/// Five windowed layers, then a full one.
fn five_to_one(layers: usize) -> Vec<&'static str> {
    (1..=layers).map(|l| if l.is_multiple_of(6) { "full_attention" } else { "sliding_attention" }).collect()
}

/// What the larger Gemma 4 models share.
fn gemma4(layers: usize, hidden: u32, heads: u32, kv: u32, full_kv: u32, inner: u32) -> Value {
    json!({
        "architectures": ["Gemma4ForCausalLM"],
        "model_type": "gemma4_text",
        "vocab_size": 262144,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "layer_types": five_to_one(layers),
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "head_dim": 256,
        "global_head_dim": 512,
        "num_global_key_value_heads": full_kv,
        "attention_k_eq_v": true,
        "attention_bias": false,
        "sliding_window": 1024,
        "final_logit_softcapping": 30.0,
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size_per_layer_input": 0,
        "num_kv_shared_layers": 0,
        "enable_moe_block": false,
        "max_position_embeddings": 262144,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {
            "full_attention": {
                "rope_type": "proportional",
                "partial_rotary_factor": 0.25,
                "rope_theta": 1000000.0,
            },
            "sliding_attention": { "rope_type": "default", "rope_theta": 10000.0 },
        },
        "tie_word_embeddings": true,
    })
}

fn gemma4_26b_a4b() -> Value {
    let mut c = gemma4(30, 2816, 16, 8, 2, 2112);
    c["enable_moe_block"] = json!(true);
    c["num_experts"] = json!(128);
    c["top_k_experts"] = json!(8);
    c["moe_intermediate_size"] = json!(704);
    c
}

fn gemma4_31b() -> Value {
    gemma4(60, 5376, 32, 16, 4, 21504)
}

fn gpt_oss(layers: usize, experts: u32) -> Value {
    let kinds: Vec<_> = ["sliding_attention", "full_attention"].into_iter().cycle().take(layers).collect();
    json!({
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "vocab_size": 201088,
        "hidden_size": 2880,
        "intermediate_size": 2880,
        "num_hidden_layers": layers,
        "layer_types": kinds,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "num_local_experts": experts,
        "num_experts_per_tok": 4,
        "sliding_window": 128,
        "swiglu_limit": 7.0,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "attention_bias": true,
        "rope_theta": 150000.0,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "original_max_position_embeddings": 4096,
            "truncate": false,
        },
        "tie_word_embeddings": false,
    })
}

fn glm_4_5_air() -> Value {
    json!({
        "architectures": ["Glm4MoeForCausalLM"],
        "model_type": "glm4_moe",
        "vocab_size": 151552,
        "hidden_size": 4096,
        "intermediate_size": 10944,
        "moe_intermediate_size": 1408,
        "num_hidden_layers": 46,
        "num_attention_heads": 96,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "n_routed_experts": 128,
        "num_experts_per_tok": 8,
        "n_shared_experts": 1,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "norm_topk_prob": true,
        "routed_scaling_factor": 1.0,
        "use_qk_norm": false,
        "attention_bias": true,
        "partial_rotary_factor": 0.5,
        "rope_theta": 1000000.0,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "tie_word_embeddings": false,
    })
}

fn smollm2_135m() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 49152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "rope_theta": 100000.0,
        "hidden_act": "silu",
        "attention_bias": false,
        "mlp_bias": false,
        "tie_word_embeddings": true,
    })
}

fn llama_3_2_1b() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 128256,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 32.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        "hidden_act": "silu",
        "attention_bias": false,
        "mlp_bias": false,
        "tie_word_embeddings": true,
    })
}

fn qwen3_30b_a3b() -> Value {
    json!({
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "vocab_size": 151936,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "moe_intermediate_size": 768,
        "num_hidden_layers": 48,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "norm_topk_prob": true,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "max_position_embeddings": 40960,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "rope_scaling": null,
        "hidden_act": "silu",
        "attention_bias": false,
        "use_sliding_window": false,
        "tie_word_embeddings": false,
    })
}

fn qwen3_next_80b_a3b() -> Value {
    json!({
        "architectures": ["Qwen3NextForCausalLM"],
        "model_type": "qwen3_next",
        "vocab_size": 151936,
        "hidden_size": 2048,
        "intermediate_size": 5120,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
        "num_hidden_layers": 48,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "num_experts": 512,
        "num_experts_per_tok": 10,
        "norm_topk_prob": true,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "linear_conv_kernel_dim": 4,
        "full_attention_interval": 4,
        "max_position_embeddings": 262144,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000000.0,
        "partial_rotary_factor": 0.25,
        "rope_scaling": null,
        "hidden_act": "silu",
        "attention_bias": false,
        "tie_word_embeddings": false,
    })
}

/// Also 3.6 of the same size. With its predictor and its vision tower, as published.
fn qwen3_8_27b() -> Value {
    json!({
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "tie_word_embeddings": false,
        "text_config": {
            "model_type": "qwen3_5_text",
            "vocab_size": 248320,
            "hidden_size": 5120,
            "intermediate_size": 17408,
            "num_hidden_layers": 64,
            "num_attention_heads": 24,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "linear_key_head_dim": 128,
            "linear_value_head_dim": 128,
            "linear_num_key_heads": 16,
            "linear_num_value_heads": 48,
            "linear_conv_kernel_dim": 4,
            "full_attention_interval": 4,
            "max_position_embeddings": 262144,
            "rms_norm_eps": 1e-6,
            "hidden_act": "silu",
            "attention_bias": false,
            "attn_output_gate": true,
            "mamba_ssm_dtype": "float32",
            "mtp_num_hidden_layers": 1,
            "mtp_use_dedicated_embeddings": false,
            "partial_rotary_factor": 0.25,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000000.0,
                "partial_rotary_factor": 0.25,
                "mrope_section": [11, 11, 10],
                "mrope_interleaved": true,
            },
            "tie_word_embeddings": false,
        },
        "vision_config": {
            "model_type": "qwen3_5",
            "depth": 27,
            "hidden_size": 1152,
            "intermediate_size": 4304,
            "num_heads": 16,
            "in_channels": 3,
            "patch_size": 16,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "num_position_embeddings": 2304,
            "out_hidden_size": 5120,
            "deepstack_visual_indexes": [],
            "hidden_act": "gelu_pytorch_tanh",
        },
    })
}

fn qwen3_6_35b_a3b() -> Value {
    json!({
        "architectures": ["Qwen3_5MoeForCausalLM"],
        "model_type": "qwen3_5_moe_text",
        "vocab_size": 248320,
        "hidden_size": 2048,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
        "num_hidden_layers": 40,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "linear_conv_kernel_dim": 4,
        "full_attention_interval": 4,
        "max_position_embeddings": 262144,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "attention_bias": false,
        "attn_output_gate": true,
        "mamba_ssm_dtype": "float32",
        "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": false,
        "partial_rotary_factor": 0.25,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000000.0,
            "partial_rotary_factor": 0.25,
            "mrope_section": [11, 11, 10],
            "mrope_interleaved": true,
        },
        "tie_word_embeddings": false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_name_is_refused_with_the_list() {
        let e = config("gpt-9", &Resize::default()).unwrap_err().to_string();
        assert!(e.contains("'gpt-9'") && names().all(|n| e.contains(n)), "{e}");
    }

    #[test]
    fn resizing_keeps_what_does_not_change() {
        let c = config("Qwen3.6-35B-A3B", &Resize { layers: Some(4), experts: Some(4), vocab: Some(300) }).unwrap();
        assert_eq!((&c["num_hidden_layers"], &c["num_experts"], &c["vocab_size"]), (&json!(4), &json!(4), &json!(300)));
        assert_eq!((&c["num_experts_per_tok"], &c["hidden_size"]), (&json!(4), &json!(2048)));
        let c = config("qwen3.8-27b", &Resize { layers: Some(8), ..Resize::default() }).unwrap();
        assert_eq!((&c["text_config"]["num_hidden_layers"], &c["vision_config"]["depth"]), (&json!(8), &json!(27)));
    }

    #[test]
    fn what_cannot_be_resized_is_said() {
        let of = |r| config("smollm2-135m", &r).unwrap_err().to_string();
        assert!(of(Resize { experts: Some(4), ..Resize::default() }).contains("--experts"));
        assert!(of(Resize { vocab: Some(258), ..Resize::default() }).contains("259"));
    }
}
