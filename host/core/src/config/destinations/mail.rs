//! The settings of mail servers, and the recipients that plugins may write to through each.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::addresses::{AddressKind, AddressRange};
use super::repeat::Repeat;
use super::{ADDRESSES, of_name, ten_seconds};
use crate::config::{Bytes, Duration, SecretRef};
use crate::model::fault::{ManifestFault, fault};

/// The controller holds a message in memory until it is sent.
pub const MAIL_MOST: u64 = 1 << 20;
/// Each recipient takes an exchange with the server.
pub const RECIPIENTS_MOST: usize = 50;
/// Every recipient is compared with each domain.
const DOMAINS: usize = 64;
/// The longest time for which a call of a plugin may wait.
const TIMEOUT_MOST: std::time::Duration = std::time::Duration::from_secs(60);

/// A mail server. The controller holds its address, the login and the sender; a plugin names recipients.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MailSpec {
    /// The name that grants use.
    #[cfg_attr(test, schemars(schema_with = "crate::config::reference::name"))]
    pub name: String,
    /// The name or the address of the server. With TLS its certificate has to be for it.
    pub server: String,
    /// The port. Left out: 465 with `implicit`, 587 otherwise.
    #[cfg_attr(test, schemars(range(min = 1)))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// How the connection is encrypted.
    #[serde(default)]
    pub tls: MailTls,
    /// A file with the certificates of authorities (PEM) that are trusted beside those of the machine. Left out: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<String>,
    /// The sender, such as `Kubewitness <kubewitness@example.com>`. A plugin can't choose another.
    pub from: String,
    /// The name and the password that the controller logs in with. Left out: no login.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub login: Option<MailLogin>,
    /// The domains that plugins may write to, without their subdomains.
    #[cfg_attr(test, schemars(length(min = 1, max = DOMAINS)))]
    pub recipients: Vec<String>,
    /// The addresses that the controller connects to, as for a destination. Left out: what `server` says.
    #[cfg_attr(test, schemars(length(max = ADDRESSES)))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<AddressRange>,
    /// The largest size of a message, as it is sent.
    #[cfg_attr(test, schemars(extend("x-bounds" = "1Ki to 1Mi")))]
    #[serde(default = "quarter")]
    pub size: Bytes,
    /// Messages per second at most.
    #[cfg_attr(test, schemars(range(min = 1)))]
    #[serde(default = "one")]
    pub rate: u32,
    /// How long one message may take, with all of its recipients.
    #[cfg_attr(test, schemars(extend("x-bounds" = "more than 0, at most 1m")))]
    #[serde(default = "ten_seconds")]
    pub timeout: Duration,
    /// Whether the controller hands a message over again that the server may have: one that was on its way when the
    /// controller was killed, or that got no answer.
    #[serde(default)]
    pub repeat: Repeat,
}

/// How the connection to a mail server is encrypted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum MailTls {
    /// It begins plain, and is encrypted before anything is sent. A server that offers no STARTTLS gets nothing.
    #[default]
    StartTls,
    /// From its first byte.
    Implicit,
    /// Not at all. Everybody on the way can read the messages. With `login`, it is refused.
    None,
}

/// How the controller logs in at a mail server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MailLogin {
    /// The name.
    pub user: String,
    /// Where the password is. The controller reads it for each message.
    pub password_from: SecretRef,
}

impl MailSpec {
    /// A server that cannot be reached, with the defaults of all other settings.
    pub fn of(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            server: "unchecked.invalid".to_owned(),
            port: None,
            tls: MailTls::default(),
            ca: None,
            from: "unchecked@unchecked.invalid".to_owned(),
            login: None,
            recipients: vec!["unchecked.invalid".to_owned()],
            addresses: Vec::new(),
            size: quarter(),
            rate: one(),
            timeout: ten_seconds(),
            repeat: Repeat::default(),
        }
    }

    pub fn port(&self) -> u16 {
        self.port.unwrap_or(if self.tls == MailTls::Implicit { 465 } else { 587 })
    }

    /// The addresses that the controller connects to.
    pub fn reachable_addresses(&self) -> Vec<AddressRange> {
        match (self.addresses.is_empty(), self.server.parse::<IpAddr>()) {
            (false, _) => self.addresses.clone(),
            (true, Ok(address)) => vec![AddressRange::Net(address.into())],
            (true, Err(_)) => of_name(&self.server),
        }
    }

    /// Whether plugins may send mail to this address.
    pub fn allows_recipient(&self, recipient: &str) -> bool {
        let domain = recipient.rsplit_once('@').map(|(_, domain)| domain);
        domain
            .is_some_and(|domain| self.recipients.iter().any(|allowed| allowed.eq_ignore_ascii_case(domain)))
    }
}

pub(in crate::config) fn check(place: &str, spec: &MailSpec, faults: &mut Vec<ManifestFault>) {
    let mut wrong = |field: &str, message: String| faults.push(fault(format!("{place}.{field}"), message));
    let odd = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '/' | '@' | ':');
    let literal = spec.server.parse::<IpAddr>().ok();
    if spec.server.is_empty() || (literal.is_none() && spec.server.contains(odd)) {
        wrong("server", format!("`{}` is no server: write its name or address, without a port", spec.server));
    }
    if let Some(address) =
        literal.filter(|address| !spec.reachable_addresses().iter().any(|range| range.contains(*address)))
    {
        let kind = AddressKind::of(address);
        wrong(
            "server",
            format!("is {kind}, which `addresses` does not name: add `{address}` there if this is meant"),
        );
    }
    if spec.port == Some(0) {
        wrong("port", "is 0: write the server's port, or leave it out".into());
    }
    if spec.tls == MailTls::None && spec.login.is_some() {
        let message = "would send the password in the clear: use `tls: startTls` or `tls: implicit`, or leave `login` out";
        wrong("tls", message.into());
    }
    if spec.recipients.is_empty() || spec.recipients.len() > DOMAINS {
        let count = spec.recipients.len();
        wrong("recipients", format!("has {count} domains: name 1 to {DOMAINS} that plugins may write to"));
    }
    for (index, domain) in spec.recipients.iter().enumerate() {
        if domain.is_empty() || domain.contains(odd) || domain.contains('*') {
            wrong(
                &format!("recipients[{index}]"),
                format!("`{domain}` is no domain: write one such as example.com"),
            );
        }
    }
    if spec.addresses.len() > ADDRESSES {
        wrong("addresses", format!("has {} entries: the most is {ADDRESSES}", spec.addresses.len()));
    }
    if !(1024..=MAIL_MOST).contains(&spec.size.0) {
        wrong("size", format!("is {}: write 1Ki to 1Mi", spec.size));
    }
    if spec.rate == 0 {
        wrong("rate", "is 0: write 1 or more messages a second".into());
    }
    if spec.timeout.0.is_zero() || spec.timeout.0 > TIMEOUT_MOST {
        wrong("timeout", format!("is {}: write more than 0s and at most 1m", spec.timeout));
    }
}

fn quarter() -> Bytes {
    Bytes(256 << 10)
}

fn one() -> u32 {
    1
}

#[cfg(test)]
mod tests {
    use super::*;

    const REST: &str = "from: a@example.com, recipients: [example.com]";

    fn spec(text: &str) -> MailSpec {
        serde_saphyr::from_str(&format!("{{name: relay, {text}}}")).unwrap()
    }

    #[test]
    fn a_recipient_is_of_one_of_the_domains_and_of_no_other() {
        let spec = spec(&format!("server: mail.example.com, {REST}"));
        assert!(spec.allows_recipient("ada@example.com") && spec.allows_recipient("ada@EXAMPLE.com"));
        for other in ["ada@sub.example.com", "ada@notexample.com", "example.com", "ada@example.com.evil.org"]
        {
            assert!(!spec.allows_recipient(other), "{other}");
        }
        assert_eq!((spec.port(), spec.tls), (587, MailTls::StartTls));
    }

    #[test]
    fn what_a_mail_server_cannot_mean_is_a_fault_of_its_field() {
        for (text, field, message) in [
            (format!("server: 'mail.example.com:25', {REST}"), "server", "without a port"),
            (format!("server: 127.0.0.1, addresses: [public], {REST}"), "server", "is a loopback address"),
            (
                format!("server: a, tls: none, login: {{user: u, passwordFrom: {{env: P}}}}, {REST}"),
                "tls",
                "in the clear",
            ),
            ("server: a, from: a@example.com, recipients: []".into(), "recipients", "has 0 domains"),
            ("server: a, from: a@b.c, recipients: ['*.b.c']".into(), "recipients[0]", "is no domain"),
            (format!("server: a, size: 2Mi, {REST}"), "size", "write 1Ki to 1Mi"),
            (format!("server: a, rate: 0, {REST}"), "rate", "is 0"),
            (format!("server: a, timeout: 2m, {REST}"), "timeout", "at most 1m"),
            (format!("server: a, port: 0, {REST}"), "port", "is 0"),
        ] {
            let mut faults = Vec::new();
            check("spec.mail[0]", &spec(&text), &mut faults);
            assert_eq!(faults.len(), 1, "{text}: {faults:?}");
            assert_eq!(faults[0].field, format!("spec.mail[0].{field}"));
            assert!(faults[0].message.contains(message), "{faults:?}");
        }
        let mut faults = Vec::new();
        check("spec.mail[0]", &spec(&format!("server: 127.0.0.1, tls: none, {REST}")), &mut faults);
        assert_eq!(faults, []);
    }
}
