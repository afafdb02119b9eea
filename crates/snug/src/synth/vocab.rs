//! A byte-level BPE of any length without merges: every byte is a token, a conversation has its specials, and the rest
//! are names that no text is ever turned into.

use super::geometry::{LEAST_VOCAB, SPECIALS};
use serde_json::{Map, Value, json};

/// `tokenizer.json` with `vocab` tokens.
pub fn tokenizer(vocab: u32) -> Value {
    let bytes = byte_names().map(String::from).enumerate().map(|(id, name)| (name, json!(id)));
    let filler = (LEAST_VOCAB..vocab).map(|id| (format!("[filler{id}]"), json!(id)));
    let all: Map<String, Value> = bytes.chain(filler).collect();
    let added = SPECIALS.map(|(id, content)| {
        json!({"id": id, "content": content, "special": true, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false})
    });
    let bytes = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added,
        "normalizer": null,
        "pre_tokenizer": bytes,
        "post_processor": null,
        "decoder": bytes,
        "model": {
            "type": "BPE",
            "dropout": null,
            "unk_token": null,
            "continuing_subword_prefix": null,
            "end_of_word_suffix": null,
            "fuse_unk": false,
            "byte_fallback": false,
            "ignore_merges": false,
            "vocab": all,
            "merges": [],
        },
    })
}

/// `tokenizer_config.json`.
pub fn tokenizer_config() -> Value {
    let [(_, pad), _, (_, eos)] = SPECIALS;
    json!({"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": null, "eos_token": eos, "pad_token": pad,
        "unk_token": null, "add_bos_token": false, "clean_up_tokenization_spaces": false})
}

/// The characters that byte-level vocabularies write bytes with: printable Latin-1 for itself, all others moved to
/// U+0100 and up in their order (GPT-2).
fn byte_names() -> impl Iterator<Item = char> {
    let mut moved = 0x100..;
    (0..=255u8).filter_map(move |b| match b {
        0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF => Some(char::from(b)),
        _ => moved.next().and_then(char::from_u32),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_id_has_one_token() {
        let t = tokenizer(300);
        let mut ids: Vec<u64> =
            t["model"]["vocab"].as_object().unwrap().values().map(|v| v.as_u64().unwrap()).collect();
        ids.extend(t["added_tokens"].as_array().unwrap().iter().map(|a| a["id"].as_u64().unwrap()));
        ids.sort_unstable();
        assert_eq!(ids, (0..300).collect::<Vec<_>>());
    }

    #[test]
    fn space_and_newline_have_their_usual_names() {
        let names: Vec<char> = byte_names().collect();
        assert_eq!((names.len(), names[b' ' as usize], names[b'\n' as usize]), (256, 'Ġ', 'Ċ'));
    }
}
