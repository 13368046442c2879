//! The services whose rules a destination follows: how they sign requests, and how many requests they accept.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::super::SecretRef;

/// The service behind a destination: exactly one. The controller signs each request as the service demands it, and
/// keeps to its rate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct SchemeSpec {
    /// An incoming webhook of Slack: one request a second. Its address is the secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slack: Option<Unsigned>,
    /// A custom bot of Feishu or Lark: 100 requests a minute and 5 a second. `timestamp` and `sign` stand in the body.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub feishu: Option<Signing>,
    /// A custom robot of DingTalk: 20 requests a minute. `timestamp` and `sign` stand in the query.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dingtalk: Option<Signing>,
    /// The robot of a group of WeCom: 20 requests a minute. Its address is the secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wecom: Option<Unsigned>,
    /// Any receiver that checks a signature over time and body in a header.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hmac: Option<HeaderSignature>,
}

/// The one scheme that a [`SchemeSpec`] names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SigningScheme<'a> {
    Slack,
    Feishu(&'a Signing),
    Dingtalk(&'a Signing),
    Wecom,
    Hmac(&'a HeaderSignature),
}

/// A scheme without a signature.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Unsigned {}

/// A scheme with a signature, for robots that demand one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(test, schemars(rename = "SchemeSigning"))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Signing {
    /// Where the signing secret of the robot is. Left out: requests are not signed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_from: Option<SecretRef>,
}

/// A signature in a header: `t=SECONDS,v1=HEX`, where HEX is the HMAC-SHA256 of `SECONDS.BODY`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HeaderSignature {
    /// Where the secret is.
    pub secret_from: SecretRef,
    /// The name of the header.
    #[serde(default = "signature_header")]
    pub header: String,
}

fn signature_header() -> String {
    "x-kubewitness-signature".into()
}

/// At most this many requests in this much time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateQuota {
    pub most: u32,
    pub within: Duration,
}

const fn rate_quota(most: u32, seconds: u64) -> RateQuota {
    RateQuota { most, within: Duration::from_secs(seconds) }
}

impl SchemeSpec {
    /// The only scheme that is set; `None` if no scheme or several are set.
    pub fn only_scheme(&self) -> Option<SigningScheme<'_>> {
        let named = [
            self.slack.as_ref().map(|_| SigningScheme::Slack),
            self.feishu.as_ref().map(SigningScheme::Feishu),
            self.dingtalk.as_ref().map(SigningScheme::Dingtalk),
            self.wecom.as_ref().map(|_| SigningScheme::Wecom),
            self.hmac.as_ref().map(SigningScheme::Hmac),
        ];
        let mut named = named.into_iter().flatten();
        named.next().filter(|_| named.next().is_none())
    }
}

impl<'a> SigningScheme<'a> {
    /// The quotas of the service, used if the operator sets no `rate`.
    pub fn quotas(self) -> &'static [RateQuota] {
        match self {
            Self::Slack => const { &[rate_quota(1, 1)] },
            Self::Feishu(_) => const { &[rate_quota(100, 60), rate_quota(5, 1)] },
            Self::Dingtalk(_) | Self::Wecom => const { &[rate_quota(20, 60)] },
            Self::Hmac(_) => &[],
        }
    }

    pub fn secret_ref(self) -> Option<&'a SecretRef> {
        match self {
            Self::Slack | Self::Wecom => None,
            Self::Feishu(signing) | Self::Dingtalk(signing) => signing.secret_from.as_ref(),
            Self::Hmac(signature) => Some(&signature.secret_from),
        }
    }

    /// Whether the address itself is the secret: anybody who knows it may send.
    pub fn has_secret_address(self) -> bool {
        !matches!(self, Self::Hmac(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scheme(text: &str) -> Result<SchemeSpec, serde_saphyr::Error> {
        serde_saphyr::from_str(text)
    }

    #[test]
    fn the_rates_are_those_of_the_services() {
        let of = |text: &str| {
            let scheme = scheme(text).unwrap();
            let quotas = scheme.only_scheme().unwrap().quotas().iter();
            quotas.map(|quota| (quota.most, quota.within.as_secs())).collect::<Vec<_>>()
        };
        assert_eq!(of("slack: {}"), [(1, 1)]);
        assert_eq!(of("feishu: {}"), [(100, 60), (5, 1)]);
        assert_eq!((of("dingtalk: {}"), of("wecom: {}")), (vec![(20, 60)], vec![(20, 60)]));
        assert_eq!(of("hmac: {secretFrom: {env: A}}"), []);
    }

    #[test]
    fn a_scheme_is_one_and_never_holds_a_secret() {
        let signed = scheme("dingtalk: {secretFrom: {env: DING}}").unwrap();
        assert_eq!(signed.only_scheme().unwrap().secret_ref(), Some(&SecretRef::Env("DING".into())));
        assert_eq!(
            (scheme("{slack: {}, wecom: {}}").unwrap().only_scheme(), SchemeSpec::default().only_scheme()),
            (None, None)
        );
        for wrong in [
            "slack: {secretFrom: {env: A}}",
            "feishu: {secret: a}",
            "feishu: {secretFrom: hush}",
            "hmac: {}",
            "telex: {}",
        ] {
            let error = scheme(wrong).unwrap_err().to_string();
            assert!(error.contains("secret") || error.contains("telex"), "{error}");
        }
    }
}
