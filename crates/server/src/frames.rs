//! Server-sent events as bytes.

use bytes::Bytes;
use serde_json::Value;

/// Events that wait to be sent.
#[derive(Debug, Default)]
pub struct Frames {
    bytes: Vec<u8>,
}

impl Frames {
    /// An event without a name.
    pub fn data(&mut self, data: &Value) {
        // JSON text has no line breaks.
        self.line("data: ", &data.to_string());
    }

    /// An event with a name.
    pub fn event(&mut self, name: &str, data: &Value) {
        self.bytes.extend_from_slice(b"event: ");
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(b'\n');
        self.data(data);
    }

    /// The end that OpenAI's streams have.
    pub fn done(&mut self) {
        self.line("data: ", "[DONE]");
    }

    /// A comment, which clients skip.
    pub fn comment(&mut self, text: &str) {
        self.line(": ", text);
    }

    fn line(&mut self, head: &str, text: &str) {
        self.bytes.extend_from_slice(head.as_bytes());
        self.bytes.extend_from_slice(text.as_bytes());
        self.bytes.extend_from_slice(b"\n\n");
    }

    /// Whether there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// What there is to send.
    pub fn take(&mut self) -> Bytes {
        std::mem::take(&mut self.bytes).into()
    }
}
