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
