//! How uids and names are stored. A UUID takes 16 bytes. Indexes have four bytes of a text's checksum instead
//! of the text; the reader compares the text afterwards.

use kubewitness_core::document::checksum;
use uuid::Uuid;

/// The part of a uid or a name that is in the indexes. Two texts may have the same one.
pub(crate) fn key(text: &str) -> u32 {
    checksum(text.as_bytes())
}

/// Only for the form that API servers write (lower case, with dashes), because the text must be restored
/// exactly.
pub(crate) fn to_bytes(uid: &str) -> Option<[u8; 16]> {
    let bytes = Uuid::try_parse(uid).ok()?.into_bytes();
    (text(bytes) == uid).then_some(bytes)
}

/// Reads the hexadecimal digits of such bytes.
pub(crate) fn from_hex(hex: &str) -> Option<String> {
    let mut bytes = [0; 16];
    hex::decode_to_slice(hex, &mut bytes).ok()?;
    Some(text(bytes))
}

fn text(bytes: [u8; 16]) -> String {
    Uuid::from_bytes(bytes).hyphenated().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_takes_16_bytes_and_comes_back_exactly() {
        let uid = "ad7a6354-87c8-4ba7-883d-615aca0e7f8c";
        assert_eq!(text(to_bytes(uid).unwrap()), uid);
        assert_eq!(from_hex("AD7A635487C84BA7883D615ACA0E7F8C").unwrap(), uid);
    }

    #[test]
    fn what_would_not_come_back_exactly_stays_text() {
        let texts = [
            "",
            "u1",
            "AD7A6354-87C8-4BA7-883D-615ACA0E7F8C",
            "ad7a6354087c8-4ba7-883d-615aca0e7f8c",
            "{ad7a6354-87c8-4ba7-883d-615aca0e7f8c}",
            "urn:uuid:ad7a6354-87c8-4ba7-883d-615aca0e7f8c",
        ];
        for other in
            texts.iter().chain(&["ad7a6354-87c8-4ba7-883d-615aca0e7f8g", "ad7a635487c84ba7883d615aca0e7f8c"])
        {
            assert_eq!(to_bytes(other), None, "{other}");
        }
    }
}
