//! Signs a request as S3-compatible storage expects it (AWS Signature, version 4). It is written by hand:
//! existing crates bring a client, or sign only the address, and `ring` has the primitives.

use std::collections::BTreeMap;

use kubewitness_core::calendar;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::Url;
use ring::digest::{SHA256, digest};
use ring::hmac;

use crate::secrets::ResolvedSecret;

/// Every other character is encoded in a path.
const ENCODED: AsciiSet = NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'/');
/// The SHA-256 of a request without a body.
pub const NO_BODY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

pub struct AccessKey {
    pub name: ResolvedSecret,
    pub secret: ResolvedSecret,
}

/// By name, in lower case.
pub type SignedHeaders = BTreeMap<&'static str, String>;

pub fn encode_path(path: &str) -> String {
    utf8_percent_encode(path, &ENCODED).to_string()
}

/// Adds the host, the time and the signature. The signature covers all present headers.
pub fn sign_headers(
    method: &str,
    url: &Url,
    headers: &mut SignedHeaders,
    body_sha256: &str,
    key: &AccessKey,
    region: &str,
    now_ms: u64,
) {
    let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
    headers.insert("host", format!("{}{port}", url.host_str().unwrap_or_default()));
    headers.insert("x-amz-content-sha256", body_sha256.to_owned());
    let time = basic_time_format(now_ms);
    headers.insert("x-amz-date", time.clone());
    let names = headers.keys().copied().collect::<Vec<_>>().join(";");
    let lines: String = headers.iter().map(|(name, value)| format!("{name}:{value}\n")).collect();
    let request = format!("{method}\n{}\n\n{lines}\n{names}\n{body_sha256}", url.path());
    let day = &time[..8];
    let scope = format!("{day}/{region}/s3/aws4_request");
    let request = hex::encode(digest(&SHA256, request.as_bytes()));
    let text = format!("AWS4-HMAC-SHA256\n{time}\n{scope}\n{request}");
    let mut signing = format!("AWS4{}", key.secret.expose_secret()).into_bytes();
    for part in [day, region, "s3", "aws4_request", &text] {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &signing);
        signing = hmac::sign(&key, part.as_bytes()).as_ref().to_vec();
    }
    let (name, signature) = (key.name.expose_secret(), hex::encode(signing));
    let authorization =
        format!("AWS4-HMAC-SHA256 Credential={name}/{scope},SignedHeaders={names},Signature={signature}");
    headers.insert("authorization", authorization);
}

/// `20130524T000000Z`
fn basic_time_format(ms: u64) -> String {
    let text = calendar::format_rfc3339(ms);
    let seconds = text.split('.').next().unwrap_or_default();
    seconds.trim_end_matches('Z').chars().filter(|c| c.is_ascii_alphanumeric()).chain(['Z']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signature(method: &str, url: &str, headers: &[(&'static str, &str)], body: &str) -> String {
        let key = AccessKey {
            name: ResolvedSecret::of_test("AKIAIOSFODNN7EXAMPLE"),
            secret: ResolvedSecret::of_test("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"),
        };
        let mut signed_headers: SignedHeaders =
            headers.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        let now_ms = calendar::parse("2013-05-24T00:00:00.000Z").unwrap();
        let body = hex::encode(digest(&SHA256, body.as_bytes()));
        sign_headers(
            method,
            &Url::parse(url).unwrap(),
            &mut signed_headers,
            &body,
            &key,
            "us-east-1",
            now_ms,
        );
        signed_headers["authorization"].clone()
    }

    /// The examples of "Signature Calculations for the Authorization Header" in the reference of S3.
    #[test]
    fn signatures_are_those_of_the_known_answers_of_the_reference() {
        let authorization = signature(
            "GET",
            "https://examplebucket.s3.amazonaws.com/test.txt",
            &[("range", "bytes=0-9")],
            "",
        );
        let expected = "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41";
        assert!(authorization.ends_with(expected), "{authorization}");
        assert!(
            authorization.contains("Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,"),
            "{authorization}"
        );
        assert!(
            authorization.contains("SignedHeaders=host;range;x-amz-content-sha256;x-amz-date,"),
            "{authorization}"
        );
        let url = format!("https://examplebucket.s3.amazonaws.com/{}", encode_path("test$file.text"));
        let headers =
            [("date", "Fri, 24 May 2013 00:00:00 GMT"), ("x-amz-storage-class", "REDUCED_REDUNDANCY")];
        let authorization = signature("PUT", &url, &headers, "Welcome to Amazon S3.");
        let expected = "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd";
        assert!(authorization.ends_with(expected), "{authorization}");
    }

    #[test]
    fn a_path_keeps_its_slashes_and_hides_everything_else() {
        assert_eq!(encode_path("a/trail-000001.jsonl"), "a/trail-000001.jsonl");
        assert_eq!(encode_path("a b+ä"), "a%20b%2B%C3%A4");
        assert_eq!(digest(&SHA256, b"").as_ref(), hex::decode(NO_BODY).unwrap());
    }
}
