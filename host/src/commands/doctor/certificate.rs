//! Reads the expiry time of a certificate. It reads nothing else of it, and trusts nothing in it.
//!
//! The crate `x509-parser` was rejected: it would bring nine crates that nothing else needs, for one date.

use kubewitness_core::calendar;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// Returns the end of the first certificate in a PEM text.
pub fn end_of_pem(pem: &[u8]) -> Option<u64> {
    certificate_end(&CertificateDer::from_pem_slice(pem).ok()?)
}

/// In milliseconds; `None` if it is not a certificate.
pub fn certificate_end(der: &[u8]) -> Option<u64> {
    let (_, certificate, _) = first_der_value(der).filter(|(tag, ..)| *tag == SEQUENCE)?;
    let (_, mut signed, _) = first_der_value(certificate).filter(|(tag, ..)| *tag == SEQUENCE)?;
    if signed.first() == Some(&VERSION) {
        signed = first_der_value(signed)?.2;
    }
    // Serial number, algorithm, issuer.
    for _ in 0..3 {
        signed = first_der_value(signed)?.2;
    }
    let (_, validity, _) = first_der_value(signed).filter(|(tag, ..)| *tag == SEQUENCE)?;
    let (_, _, after_beginning) = first_der_value(validity)?;
    let (tag, end, _) = first_der_value(after_beginning)?;
    let digits = std::str::from_utf8(end).ok()?.strip_suffix('Z')?;
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let digits = match (tag, digits.len()) {
        // A two-digit year: in X.509 it means 1950 to 2049.
        (UTC_TIME, 12) if digits < "5" => format!("20{digits}"),
        (UTC_TIME, 12) => format!("19{digits}"),
        (GENERALIZED_TIME, 14) => digits.to_owned(),
        _ => return None,
    };
    let part = |from: usize, to: usize| &digits[from..to];
    calendar::parse_rfc3339_ms(&format!(
        "{}-{}-{}T{}:{}:{}Z",
        part(0, 4),
        part(4, 6),
        part(6, 8),
        part(8, 10),
        part(10, 12),
        part(12, 14)
    ))
}

/// The tag of the first value, its content, and the rest.
fn first_der_value(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = bytes.split_first()?;
    let (&length, mut rest) = rest.split_first()?;
    let mut size = usize::from(length & 0x7f);
    if length & 0x80 != 0 {
        // The length has this many bytes; four are enough for any certificate.
        if size > 4 {
            return None;
        }
        let (bytes, after) = rest.split_at_checked(size)?;
        (size, rest) = (bytes.iter().fold(0, |size, byte| size << 8 | usize::from(*byte)), after);
    }
    let (content, after) = rest.split_at_checked(size)?;
    Some((tag, content, after))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In DER, with a short length.
    fn of(tag: u8, content: &[u8]) -> Vec<u8> {
        [&[tag, u8::try_from(content.len()).unwrap()], content].concat()
    }

    fn certificate(end: &[u8], version: bool) -> Vec<u8> {
        let validity = of(SEQUENCE, &[of(UTC_TIME, b"200101000000Z"), end.to_vec()].concat());
        let version = if version { of(VERSION, &of(2, &[2])) } else { Vec::new() };
        let parts =
            [version, of(2, &[7]), of(SEQUENCE, &[]), of(SEQUENCE, b"x"), validity, of(SEQUENCE, b"y")];
        of(SEQUENCE, &of(SEQUENCE, &parts.concat()))
    }

    #[test]
    fn the_end_is_found_whatever_form_it_has() {
        let end_time =
            |end: &[u8]| super::certificate_end(&certificate(end, true)).map(calendar::format_rfc3339);
        assert_eq!(end_time(&of(UTC_TIME, b"270301120000Z")).as_deref(), Some("2027-03-01T12:00:00.000Z"));
        assert_eq!(
            end_time(&of(GENERALIZED_TIME, b"20510301120000Z")).as_deref(),
            Some("2051-03-01T12:00:00.000Z")
        );
        assert!(certificate_end(&certificate(&of(UTC_TIME, b"270301120000Z"), false)).is_some());
        assert_eq!(end_time(&of(UTC_TIME, b"2703011200Z")), None);
        assert_eq!(end_time(&of(UTC_TIME, "27030112000é".as_bytes())), None);
    }

    #[test]
    fn what_is_no_certificate_has_no_end_wherever_it_breaks_off() {
        let whole = certificate(&of(UTC_TIME, b"270301120000Z"), true);
        for cut in 0..whole.len() {
            assert_eq!(certificate_end(&whole[..cut]), None, "{cut}");
        }
        for hostile in [&[0x30, 0x84, 0xff, 0xff, 0xff, 0xff][..], &[0x30, 0xff], b"-----BEGIN"] {
            assert_eq!(certificate_end(hostile), None);
            assert_eq!(end_of_pem(hostile), None);
        }
    }
}
