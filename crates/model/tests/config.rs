//! Configurations that are valid files and unusable models: one error that names what is wrong, and no arithmetic on zero.

use checkpoint::{Checkpoint, DType, Meta, NewTensor, Source, write_gguf_to};

fn gguf(meta: &Meta, tensors: &[NewTensor]) -> Checkpoint {
    let mut bytes = Vec::new();
    write_gguf_to::<checkpoint::Error>(&mut bytes, meta, tensors, |i, w| {
        let n: u64 = tensors[i].shape.iter().product();
        w.floats(&vec![0.5; n as usize])
    })
    .unwrap();
    Checkpoint::open(Source::Bytes(bytes.into())).unwrap()
}

fn refusal(meta: &Meta) -> String {
    match model::open(&gguf(meta, &[])) {
        Ok(_) => panic!("an unusable configuration was accepted"),
        Err(e) => e.to_string(),
    }
}

fn llama() -> Meta {
    let mut m = Meta::gguf();
    m.set("general.architecture", "llama");
    for (key, value) in [
        ("block_count", 1u32),
        ("context_length", 64),
        ("embedding_length", 8),
        ("feed_forward_length", 16),
        ("attention.head_count", 2),
        ("attention.head_count_kv", 1),
        ("vocab_size", 4),
    ] {
        m.set(&format!("llama.{key}"), value);
    }
    m.set("llama.attention.layer_norm_rms_epsilon", 1e-5f32);
    m
}

#[test]
fn everything_that_is_missing_is_listed_at_once() {
    let mut m = Meta::gguf();
    m.set("general.architecture", "llama");
    let e = refusal(&m);
    for key in ["block_count", "context_length", "embedding_length", "attention.head_count", "feed_forward_length"] {
        assert!(e.contains(&format!("llama.{key}")), "{key} is not in: {e}");
    }
}

#[test]
fn zeros_are_refused_by_name() {
    for key in ["block_count", "context_length", "embedding_length", "attention.head_count"] {
        let mut m = llama();
        m.set(&format!("llama.{key}"), 0u32);
        let e = refusal(&m);
        assert!(e.contains(&format!("llama.{key}")) && e.contains("at least 1"), "{key}: {e}");
    }
    let mut m = llama();
    m.set("llama.attention.head_count_kv", 0u32);
    assert!(refusal(&m).contains("head_count_kv"));
}

#[test]
fn heads_that_do_not_divide_are_refused() {
    let mut m = llama();
    m.set("llama.attention.head_count", 3u32).set("llama.attention.head_count_kv", 2u32);
    assert!(refusal(&m).contains("llama.attention.head_count_kv"));
}

#[test]
fn values_of_the_wrong_type_are_refused_by_key() {
    let mut m = llama();
    m.set("llama.block_count", "many");
    assert!(refusal(&m).contains("llama.block_count"));
}

#[test]
fn an_unknown_architecture_is_named_with_those_that_are_known() {
    let mut m = Meta::gguf();
    m.set("general.architecture", "zzz");
    let e = refusal(&m);
    assert!(e.contains("'zzz'") && model::supported().iter().all(|a| e.contains(a)), "{e}");
    assert!(refusal(&Meta::gguf()).contains("general.architecture"));
}

#[test]
fn tensors_that_are_missing_or_of_another_shape_are_named() {
    let ck = gguf(&llama(), &[NewTensor::new("token_embd.weight", DType::F32, &[4, 8])]);
    let family = model::open(&ck).unwrap();
    let e = model::bind(family.as_ref(), &ck).unwrap_err().to_string();
    assert!(e.contains("blk.0.attn_q.weight") && !e.contains(" output.weight"), "{e}");
    let ck = gguf(&llama(), &[NewTensor::new("token_embd.weight", DType::F32, &[4, 16])]);
    let family = model::open(&ck).unwrap();
    let e = model::bind(family.as_ref(), &ck).unwrap_err().to_string();
    assert!(e.contains("token_embd.weight") && e.contains("[4, 16]") && e.contains("[4, 8]"), "{e}");
}

#[test]
fn more_experts_a_token_than_there_are_is_refused() {
    let mut m = Meta::gguf();
    m.set("general.architecture", "qwen35moe");
    let e = refusal(&m);
    assert!(e.contains("qwen35moe.expert_count") && e.contains("qwen35moe.ssm.inner_size"), "{e}");
    m.set("qwen35moe.expert_count", 4u32).set("qwen35moe.expert_used_count", 5u32);
    for key in [
        "block_count",
        "context_length",
        "embedding_length",
        "vocab_size",
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "expert_feed_forward_length",
        "expert_shared_feed_forward_length",
        "ssm.conv_kernel",
        "ssm.state_size",
        "ssm.group_count",
        "ssm.time_step_rank",
        "ssm.inner_size",
    ] {
        m.set(&format!("qwen35moe.{key}"), 8u32);
    }
    m.set("qwen35moe.attention.layer_norm_rms_epsilon", 1e-6f32);
    assert!(refusal(&m).contains("expert_used_count"));
}

#[test]
fn counts_beyond_reason_are_refused_at_once() {
    for (key, value) in [("block_count", u32::MAX), ("block_count", 1 << 20), ("embedding_length", u32::MAX)] {
        let mut m = llama();
        m.set(&format!("llama.{key}"), value);
        let e = refusal(&m);
        assert!(e.contains(&format!("llama.{key}")), "{e}");
    }
    let mut m = llama();
    m.set("llama.attention.key_length", u32::MAX);
    assert!(refusal(&m).contains("key_length"));
}

#[test]
fn numbers_that_cannot_be_are_refused_by_key() {
    for bad in [0.0f32, -1.0, f32::NAN, f32::INFINITY] {
        for key in ["rope.freq_base", "attention.layer_norm_rms_epsilon"] {
            let mut m = llama();
            m.set(&format!("llama.{key}"), bad);
            assert!(refusal(&m).contains(key), "{key} {bad}");
        }
    }
    for dims in [0u32, 1, 3, 1 << 31] {
        let mut m = llama();
        m.set("llama.rope.dimension_count", dims);
        assert!(refusal(&m).contains("rope.dimension_count"), "{dims}");
    }
}

/// A tiny checkpoint whose config.json was altered.
fn altered(name: &str, alter: impl FnOnce(&mut serde_json::Value)) -> String {
    let dir = tempfile::tempdir().unwrap();
    let mut m = testkit::model(name).unwrap();
    alter(&mut m.config);
    testkit::write_checkpoint(&m, dir.path()).unwrap();
    let ck = Checkpoint::open(dir.path().to_path_buf()).unwrap();
    match model::open(&ck) {
        Ok(f) => model::bind(f.as_ref(), &ck).err().map_or("accepted".into(), |e| e.to_string()),
        Err(e) => e.to_string(),
    }
}

#[test]
fn config_json_is_not_read_past_what_it_says() {
    use serde_json::json;
    for (key, value) in [
        ("hidden_act", json!("gelu")),
        ("hidden_act", json!(7)),
        ("rope_parameters", json!(5)),
        ("rope_parameters", json!([])),
        ("hidden_size", json!(2.5)),
        ("head_dim", json!(4294967295u32)),
        ("num_hidden_layers", json!(4294967295u32)),
        ("rms_norm_eps", json!(-1)),
    ] {
        let e = altered("llama-a", |c| c[key] = value.clone());
        assert!(e.contains(key) && !e.contains("lacks"), "{key} {value}: {e}");
    }
    for value in [json!("x"), json!(0), json!(["full_attention"])] {
        let e = altered("qwen3_5_moe-a", |c| c["layer_types"] = value.clone());
        assert!(e.contains("layer_types"), "{value}: {e}");
    }
    for (name, key, value) in [
        ("qwen3-a", "attention_bias", json!(true)),
        ("qwen3-a", "use_sliding_window", json!(true)),
        ("qwen3-a", "num_key_value_heads", json!(3)),
        ("llama-a", "num_attention_heads", json!(1 << 24)),
        ("qwen3-a", "num_attention_heads", json!(1 << 24)),
        ("qwen3_5-a", "linear_num_value_heads", json!(1 << 24)),
        ("qwen3_moe-a", "num_experts_per_tok", json!(9)),
        ("qwen3_moe-a", "decoder_sparse_step", json!("x")),
        ("qwen3_next-a", "linear_num_key_heads", json!(3)),
        ("qwen3_5-a", "linear_num_key_heads", json!(4)),
        ("qwen3_5-a", "full_attention_interval", json!(-4)),
        ("qwen3_5-a", "mtp_num_hidden_layers", json!(u32::MAX)),
        ("gpt_oss-a", "num_key_value_heads", json!(3)),
        ("gpt_oss-a", "num_attention_heads", json!(1 << 24)),
        ("gpt_oss-a", "swiglu_limit", json!(0)),
        ("gemma3-a", "hidden_activation", json!("silu")),
        ("gemma3-a", "final_logit_softcapping", json!(30)),
        ("gemma4_moe-a", "num_kv_shared_layers", json!(6)),
        ("gemma4_moe-a", "top_k_experts", json!(9)),
        ("gemma4_e-a", "hidden_size_per_layer_input", json!(1 << 24)),
        ("glm4_moe-b", "n_group", json!(3)),
        ("glm4_moe-b", "topk_group", json!(5)),
        ("glm4_moe-a", "num_experts_per_tok", json!(9)),
        ("glm4_moe-b", "n_shared_experts", json!(1 << 24)),
    ] {
        let e = altered(name, |c| c[key] = value.clone());
        assert!(e.contains(key) && !e.contains("lacks"), "{name} {key} {value}: {e}");
    }
    // A predictor may be named that the files do not have.
    assert_eq!(altered("qwen3_5-a", |c| c["mtp_num_hidden_layers"] = 3.into()), "accepted");
    for name in testkit::NAMES {
        assert_eq!(altered(name, |_| {}), "accepted", "{name}");
    }
}

/// Whatever a key says, there is an error or a family, never a panic.
#[test]
fn any_value_of_a_configuration_may_be_damaged() {
    use serde_json::json;
    let damage = [
        json!(0),
        json!(1),
        json!(7),
        json!(1 << 24),
        json!(u32::MAX),
        json!(-1),
        json!(2.5),
        json!("x"),
        json!([]),
        json!({}),
    ];
    for name in ["gpt_oss-b", "gemma3-b", "gemma4_moe-b", "gemma4_e-b", "glm4_moe-b"] {
        let dir = testkit::materialise(name).unwrap();
        let whole = testkit::model(name).unwrap().config;
        let keys: Vec<String> = whole.as_object().unwrap().keys().filter(|k| *k != "model_type").cloned().collect();
        for key in keys {
            for value in &damage {
                let mut c = whole.clone();
                c[&key] = value.clone();
                std::fs::write(dir.path().join("config.json"), c.to_string()).unwrap();
                let Ok(ck) = Checkpoint::open(dir.path().to_path_buf()) else { continue };
                if let Ok(f) = model::open(&ck) {
                    let _ = model::bind(f.as_ref(), &ck);
                    f.export(&mut Meta::gguf());
                    f.state(&vec![memory::KvSpec::of(memory::KvFormat::F32); f.spec().n_layers as usize]);
                }
            }
        }
    }
}

#[test]
fn a_configuration_without_a_sparse_step_of_its_own_is_sparse_throughout() {
    assert_eq!(altered("qwen3_moe-a", |c| drop(c.as_object_mut().unwrap().remove("decoder_sparse_step"))), "accepted");
    // Every second layer dense: the first one's tensors are not there.
    let e = altered("qwen3_moe-a", |c| c["decoder_sparse_step"] = 2.into());
    assert!(e.contains("model.layers.0.mlp.gate_proj.weight"), "{e}");
}
