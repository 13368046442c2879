//! Base64: the standard alphabet for secrets, the URL-safe alphabet for continue tokens.
//!
//! It is written here because a dependency for forty lines is not worthwhile.

const STANDARD: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
const URL: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// Encodes with the standard alphabet and padding.
pub fn encode(bytes: &[u8]) -> String {
    encode_with(bytes, STANDARD, true)
}

/// Encodes with the URL-safe alphabet, without padding.
pub fn encode_url(bytes: &[u8]) -> String {
    encode_with(bytes, URL, false)
}

fn encode_with(bytes: &[u8], alphabet: &[u8; 64], padded: bool) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let word =
            group.iter().fold(0_u32, |word, byte| word << 8 | u32::from(*byte)) << (8 * (3 - group.len()));
        for at in 0..4_usize {
            if at <= group.len() {
                let index = (word >> (18 - 6 * at)) & 63;
                text.push(char::from(alphabet[index as usize]));
            } else if padded {
                text.push('=');
            }
        }
    }
    text
}

/// Decodes the URL-safe alphabet without padding. The error is the offset of the wrong byte.
pub fn decode_url(text: &str) -> Result<Vec<u8>, usize> {
    let mut bytes = Vec::with_capacity(text.len() * 3 / 4);
    let (mut word, mut bits) = (0_u32, 0_u32);
    for (at, letter) in text.bytes().enumerate() {
        let value = URL.iter().position(|l| *l == letter).ok_or(at)?;
        word = word << 6 | u32::try_from(value).map_err(|_| at)?;
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            bytes.push(u8::try_from(word >> bits & 0xff).map_err(|_| at)?);
        }
    }
    if bits >= 6 { Err(text.len()) } else { Ok(bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_is_padded_as_it_should() {
        assert_eq!(
            ["", "f", "fo", "foo", "foob"].map(|t| encode(t.as_bytes())),
            ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg=="]
        );
    }

    #[test]
    fn url_safe_text_comes_back() {
        for bytes in [&b""[..], b"a", b"ab", b"abc", &[0xff, 0xfe, 0xfd, 0xfc]] {
            assert_eq!(decode_url(&encode_url(bytes)).unwrap(), bytes);
        }
        assert_eq!(decode_url("a!"), Err(1));
        assert_eq!(decode_url("zzz").unwrap(), [0xcf, 0x3c]);
    }
}
