//! Uids and names as they are stored: a UUID in 16 bytes, and an index over four bytes of any
//! text instead of the text, which is compared afterwards.

use kubewitness_core::document::checksum;

/// What the indexes hold of a uid or a name. Two texts may share it.
pub(crate) fn key(text: &str) -> u32 {
    checksum(text.as_bytes())
}

/// Only of the form that API servers write (lower case, with dashes): the text must come back
/// exactly.
pub(crate) fn to_bytes(uid: &str) -> Option<[u8; 16]> {
    let text = uid.as_bytes();
    if text.len() != 36 {
        return None;
    }
    let mut bytes = [0; 16];
    let mut nibbles = 0;
    for (index, character) in text.iter().enumerate() {
        let value = match (index, character) {
            (8 | 13 | 18 | 23, b'-') => continue,
            (8 | 13 | 18 | 23, _) => return None,
            (_, b'0'..=b'9') => character - b'0',
            (_, b'a'..=b'f') => character - b'a' + 10,
            _ => return None,
        };
        bytes[nibbles / 2] |= if nibbles % 2 == 0 { value << 4 } else { value };
        nibbles += 1;
    }
    Some(bytes)
}

fn from_bytes(bytes: &[u8]) -> Option<String> {
    if bytes.len() != 16 {
        return None;
    }
    let mut text = String::with_capacity(36);
    for (index, byte) in bytes.iter().enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        for nibble in [byte >> 4, byte & 15] {
            text.push(char::from_digit(u32::from(nibble), 16)?);
        }
    }
    Some(text)
}

/// Of the hexadecimal digits of such bytes.
pub(crate) fn from_hex(hex: &str) -> Option<String> {
    let digits: Option<Vec<u8>> =
        hex.chars().map(|digit| digit.to_digit(16).map(|digit| digit as u8)).collect();
    let bytes: Vec<u8> = digits?.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect();
    from_bytes(&bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_takes_16_bytes_and_comes_back_exactly() {
        let uid = "ad7a6354-87c8-4ba7-883d-615aca0e7f8c";
        assert_eq!(from_bytes(&to_bytes(uid).unwrap()).unwrap(), uid);
        assert_eq!(from_hex("AD7A635487C84BA7883D615ACA0E7F8C").unwrap(), uid);
    }

    #[test]
    fn what_would_not_come_back_exactly_stays_text() {
        let texts =
            ["", "u1", "AD7A6354-87C8-4BA7-883D-615ACA0E7F8C", "ad7a6354087c8-4ba7-883d-615aca0e7f8c"];
        for other in
            texts.iter().chain(&["ad7a6354-87c8-4ba7-883d-615aca0e7f8g", "ad7a635487c84ba7883d615aca0e7f8c"])
        {
            assert_eq!(to_bytes(other), None, "{other}");
        }
    }
}
