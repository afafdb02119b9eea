//! The tables of `docs/models.md` are made from the lists that tests run over, so a cell says what was tried. After a
//! change of those lists:
//!
//! ```sh
//! SNUG_WRITE_DOCS=1 cargo test -p snug --test models_doc
//! ```

use checkpoint::{Block, DType, Format};
use std::collections::BTreeMap;

const DOC: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/models.md");

/// One architecture: its `model_type`, its name in GGUF files, what people know of it.
const ARCHITECTURES: &[(&str, &str, &str)] = &[
    ("llama", "llama", "Llama 2, 3; SmolLM2; Mistral 7B"),
    ("qwen2", "qwen2", "Qwen2, Qwen2.5"),
    ("qwen3", "qwen3", "Qwen3 dense"),
    ("qwen3_moe", "qwen3moe", "Qwen3 30B-A3B, 235B-A22B"),
    ("qwen3_next", "qwen3next", "Qwen3-Next 80B-A3B"),
    ("qwen3_5", "qwen35", "Qwen3.5, 3.6, 3.8 dense (27B)"),
    ("qwen3_5_moe", "qwen35moe", "Qwen3.5, 3.6 35B-A3B"),
    ("gpt_oss", "gpt-oss", "gpt-oss 20b, 120b"),
    ("gemma3", "gemma3", "Gemma 3 1B to 27B, text"),
    ("gemma4", "gemma4", "Gemma 4 26B-A4B, 31B, E2B, E4B, text"),
    ("glm4_moe", "glm4moe", "GLM 4.5, 4.5-Air, 4.6, 4.7"),
];

/// What tests prove of one tiny model.
struct Proven {
    arch: String,
    drafts: bool,
}

/// Every tiny model. `engine/tests/families.rs` runs all of them from safetensors on both host backends, in any chunking
/// and token by token; `snug/tests/quantize.rs` writes all of them as GGUF and runs those; `engine/tests/drafting.rs` runs
/// the predictors of those that have one. All three iterate `testkit::NAMES`.
fn proven() -> Vec<Proven> {
    let one = |name: &&str| {
        let config = testkit::model(name).unwrap().config;
        let text = config.get("text_config").unwrap_or(&config);
        let kind = text["model_type"].as_str().unwrap();
        let arch = kind.strip_suffix("_text").unwrap_or(kind).to_string();
        Proven { arch, drafts: testkit::expected(name).unwrap().mtp.is_some() }
    };
    testkit::NAMES.iter().map(one).collect()
}

fn yes(b: bool) -> &'static str {
    if b { "yes" } else { "-" }
}

fn row(cells: &[&str]) -> String {
    format!("| {} |\n", cells.join(" | "))
}

fn head(cells: &[&str]) -> String {
    row(cells) + &row(&vec!["---"; cells.len()])
}

fn architectures() -> String {
    let mut models: BTreeMap<String, Vec<Proven>> = BTreeMap::new();
    proven().into_iter().for_each(|p| models.entry(p.arch.clone()).or_default().push(p));
    let mut out = head(&[
        "`model_type`",
        "GGUF",
        "models",
        "tiny models tried",
        "safetensors",
        "GGUF written and read",
        "drafts",
    ]);
    for (hf, gguf, known) in ARCHITECTURES {
        let tried = models.remove(*hf).unwrap_or_default();
        let (any, drafts) = (!tried.is_empty(), tried.iter().any(|p| p.drafts));
        let (hf, gguf) = (format!("`{hf}`"), format!("`{gguf}`"));
        out += &row(&[&hf, &gguf, known, &tried.len().to_string(), yes(any), yes(any), yes(drafts)]);
    }
    assert!(models.is_empty(), "no row of the table for {:?}", models.keys());
    out
}

/// Types of GGUF and safetensors files. Decoding is compared with recorded values of every type
/// (`checkpoint/tests/blocks.rs`), products with the reference on every type (`device/tests/linear.rs`).
fn formats() -> String {
    let plain = [DType::F32, DType::F16, DType::BF16];
    let types = plain.into_iter().chain(Block::ALL.map(DType::Block));
    let mut out = head(&["type", "decoded and multiplied", "written by `quantize`"]);
    for t in types {
        let writes = snug::quantize::parse_type(&t.name().to_ascii_lowercase()).is_ok();
        out += &row(&[t.name(), yes(t.decodable()), yes(writes)]);
    }
    out
}

/// Formats of several tensors. Products are compared with exact ones (`device/tests/planes.rs`), tiny models in each with
/// the same values as f32 (`engine/tests/formats.rs`); both run over `Format::KINDS`.
fn planes() -> String {
    let mut out = head(&[
        "format",
        "bits a weight",
        "written by",
        "multiplied as stored",
        "whole models tried",
        "drawn by `synth`",
    ]);
    use snug::synth::Scheme;
    let drawn = [Scheme::Mlx(4), Scheme::Mlx(8), Scheme::GptOss, Scheme::Fp8, Scheme::Nvfp4, Scheme::Int4];
    // Whatever the group.
    let alike = |a: Format, b: Format| match (a, b) {
        (Format::Affine { bits: a, .. }, Format::Affine { bits: b, .. }) => a == b,
        (Format::Int4 { zero: a, .. }, Format::Int4 { zero: b, .. }) => a == b,
        _ => a == b,
    };
    for (who, f) in Format::KINDS {
        let synth = drawn.iter().any(|s| alike(s.format(), f));
        out += &row(&[&f.to_string(), &format!("{:.2}", f.bits()), who, "yes", "yes", yes(synth)]);
    }
    out
}

/// The text between a table's marks.
fn place<'t>(doc: &'t str, name: &str) -> &'t str {
    let (from, to) = (format!("<!-- {name} -->\n"), format!("<!-- end of {name} -->"));
    let rest = doc.split_once(&from).unwrap_or_else(|| panic!("docs/models.md lacks {from}")).1;
    rest.split_once(&to).unwrap_or_else(|| panic!("docs/models.md lacks {to}")).0
}

#[test]
fn the_tables_say_what_was_tried() {
    let mut doc = std::fs::read_to_string(DOC).unwrap();
    let write = std::env::var_os("SNUG_WRITE_DOCS").is_some();
    for (name, table) in [("architectures", architectures()), ("formats", formats()), ("planes", planes())] {
        if write {
            let old = format!("<!-- {name} -->\n{}", place(&doc, name));
            doc = doc.replace(&old, &format!("<!-- {name} -->\n{table}"));
        }
        assert!(
            place(&doc, name) == table,
            "the {name} of docs/models.md differ; see this test's first lines. They are:\n{table}"
        );
    }
    if write {
        std::fs::write(DOC, doc).unwrap();
    }
}

#[test]
fn every_architecture_that_opens_has_a_row_and_was_tried() {
    let rows: Vec<&str> = ARCHITECTURES.iter().flat_map(|(hf, gguf, _)| [*hf, *gguf]).collect();
    for arch in model::supported() {
        assert!(rows.contains(arch), "{arch} opens and docs/models.md does not know it");
    }
    let tried: Vec<String> = proven().into_iter().map(|p| p.arch).collect();
    for (hf, ..) in ARCHITECTURES {
        assert!(tried.iter().any(|t| t == hf), "{hf} is in docs/models.md and was never tried");
    }
}
