//! The byte-to-character table of byte-level BPE (GPT-2): printable Latin-1 stands for itself, every other byte is moved
//! to U+0100 and up in order, so that a vocabulary of bytes can be written as text.

const fn stands_for_itself(b: u8) -> bool {
    matches!(b, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF)
}

/// Byte of a character below U+0144; -1 where the table has none.
const BYTE_OF: [i16; 0x144] = {
    let mut t = [-1i16; 0x144];
    let (mut b, mut moved) = (0usize, 0usize);
    while b < 256 {
        if stands_for_itself(b as u8) {
            t[b] = b as i16;
        } else {
            t[0x100 + moved] = b as i16;
            moved += 1;
        }
        b += 1;
    }
    t
};

/// Appends the bytes `token` stands for; a token with characters outside the table stands for its own UTF-8.
pub fn push_bytes(token: &str, out: &mut Vec<u8>) {
    let start = out.len();
    for c in token.chars() {
        match BYTE_OF.get(c as usize) {
            Some(&b) if b >= 0 => out.push(b as u8),
            _ => {
                out.truncate(start);
                out.extend_from_slice(token.as_bytes());
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(s: &str) -> Vec<u8> {
        let mut v = Vec::new();
        push_bytes(s, &mut v);
        v
    }

    #[test]
    fn known_points_of_the_table() {
        assert_eq!(bytes("Ġthe"), b" the");
        assert_eq!(bytes("Ċ"), b"\n");
        assert_eq!(bytes("ĉ"), b"\t");
        assert_eq!(bytes("Ń"), [0xAD]);
        assert_eq!(bytes("ðŁĺĢ"), "😀".as_bytes());
        assert_eq!(bytes("日"), "日".as_bytes(), "outside the table: itself");
        assert_eq!(BYTE_OF.iter().filter(|&&b| b >= 0).count(), 256);
    }
}
