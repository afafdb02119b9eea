//! A vocabulary in which every byte is a token, so that texts are told apart to the byte.

use text::{GgufVocab, Tokenizer};

/// A vocabulary of bytes (id `n` is byte `n`), an end token and these markers.
pub fn vocabulary(markers: &[&str]) -> Tokenizer {
    let mut tokens: Vec<String> = (0..=255).map(|b| letter(b).to_string()).collect();
    let mut types = vec![1; 256];
    tokens.push("<eos>".into());
    tokens.extend(markers.iter().map(|m| m.to_string()));
    types.resize(tokens.len(), 3);
    let vocab = GgufVocab {
        model: "gpt2",
        pre: Some("gpt-2"),
        tokens: tokens.iter().map(String::as_str).collect(),
        token_types: Some(types),
        eos: Some(256),
        ..Default::default()
    };
    Tokenizer::from_gguf(&vocab).unwrap()
}

/// How byte-level vocabularies write a byte: as itself if it prints, else as the next character behind 255.
fn letter(byte: u8) -> char {
    let prints = |b: u8| matches!(b, 33..=126 | 161..=172 | 174..=255);
    let nth = (0..byte).filter(|b| !prints(*b)).count() as u32;
    if prints(byte) { char::from(byte) } else { char::from_u32(256 + nth).unwrap() }
}
