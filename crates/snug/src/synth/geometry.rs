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
    }
    if let Some(n) = resize.experts {
        let Some(used) = t["num_experts_per_tok"].as_u64() else {
            return Err(Wrong(format!("{name} has no routed experts, so --experts means nothing for it")));
        };
        t["num_experts"] = json!(n);
        t["num_experts_per_tok"] = json!(used.min(n.into()));
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
