use std::path::Path;

use kubewitness_core::config::{AddressRange, Duration as Span, MailLogin, MailTls, SecretRef};
use kubewitness_harness::{Encryption, MailServer, tls};

use super::*;

const NOW: u64 = 1_700_000_000_000;

fn spec(server: &MailServer) -> MailSpec {
    let spec = serde_json::json!({
        "name": "relay",
        "server": "127.0.0.1",
        "port": server.address.port(),
        "tls": "none",
        "from": "Kubewitness <kw@example.com>",
        "recipients": ["example.com"],
        "rate": 100,
        "timeout": "5s",
    });
    serde_json::from_value(spec).unwrap()
}

fn mail(to: &[&str], subject: &str) -> MailMessage {
    MailMessage {
        to: to.iter().map(|recipient| (*recipient).to_owned()).collect(),
        subject: subject.into(),
        text: "Hello.\n.\nA line with a dot, and ünïcode.\n".into(),
        html: None,
        id: "jobs/1".into(),
    }
}

async fn plain() -> (MailServer, MailRelay) {
    let server = MailServer::start(Encryption::None, None).await.unwrap();
    let relay = MailRelay::open(&spec(&server)).await.unwrap();
    (server, relay)
}

async fn send(relay: &MailRelay, mail: &MailMessage, now_ms: u64) -> Result<Vec<MailRefusal>, GrantError> {
    let letter = relay.prepare_mail(mail, now_ms)?;
    relay.take()?;
    relay.send(letter).await.map_err(|unanswered| unanswered.error)
}

#[tokio::test]
async fn a_message_arrives_whole_from_the_senders_address_and_a_repeat_has_the_same_id() {
    let (server, relay) = plain().await;
    let message = mail(&["ada@example.com", "bob@example.com"], "Jöb failed");
    assert_eq!(send(&relay, &message, NOW).await.unwrap(), []);
    send(&relay, &MailMessage { html: Some("<p>Hello</p>".into()), ..message }, NOW).await.unwrap();
    let received = server.received();
    let [first, second] = received.as_slice() else { panic!("{received:?}") };
    assert_eq!(
        (first.from.as_str(), first.to.as_slice()),
        ("kw@example.com", ["ada@example.com".to_owned(), "bob@example.com".to_owned()].as_slice())
    );
    let id = |data: &str| data.lines().find(|line| line.starts_with("Message-ID: ")).unwrap().to_owned();
    assert_eq!(id(&first.data), id(&second.data));
    assert!(first.data.contains("From: Kubewitness <kw@example.com>\r\n"), "{}", first.data);
    assert!(first.data.contains("Date: Tue, 14 Nov 2023"), "{}", first.data);
    assert!(second.data.contains("multipart/alternative") && second.data.contains("text/html"));
}

#[tokio::test]
async fn the_servers_refusal_of_a_recipient_is_told_for_that_recipient() {
    let (server, relay) = plain().await;
    let message = mail(&["nobody@example.com", "ada@example.com", "later@example.com"], "s");
    let refusals = send(&relay, &message, NOW).await.unwrap();
    let refused: Vec<_> =
        refusals.iter().map(|refusal| (refusal.recipient.as_str(), refusal.is_permanent)).collect();
    assert_eq!(refused, [("nobody@example.com", true), ("later@example.com", false)]);
    assert!(refusals[0].reason.contains("no such user"), "{refusals:?}");
    assert_eq!(server.received()[0].to, ["ada@example.com"]);
    let refusals = send(&relay, &mail(&["nobody@example.com"], "s"), NOW).await.unwrap();
    assert_eq!((refusals.len(), server.received().len()), (1, 1), "nobody is left to hand it over for");
}

#[tokio::test]
async fn an_address_beyond_ascii_is_refused_by_itself_where_the_server_does_not_offer_it() {
    let (server, relay) = plain().await;
    let refusals = send(&relay, &mail(&["jürgen@example.com", "ada@example.com"], "s"), NOW).await.unwrap();
    let [refusal] = refusals.as_slice() else { panic!("{refusals:?}") };
    assert_eq!((refusal.recipient.as_str(), refusal.is_permanent), ("jürgen@example.com", true));
    assert!(refusal.reason.contains("SMTPUTF8"), "{refusal:?}");
    assert_eq!(server.received()[0].to, ["ada@example.com"]);
}

#[tokio::test]
async fn a_server_that_offers_it_is_asked_to_take_an_address_beyond_ascii() {
    let (server, relay) = plain().await;
    server.take_all_addresses();
    assert_eq!(send(&relay, &mail(&["jürgen@example.com", "ada@example.com"], "s"), NOW).await.unwrap(), []);
    let received = server.received();
    assert_eq!(received[0].to, ["jürgen@example.com", "ada@example.com"]);
    assert!(received[0].data.contains("To: jürgen@example.com"), "{}", received[0].data);
}

#[tokio::test]
async fn a_header_cannot_be_smuggled_in() {
    let (server, relay) = plain().await;
    for subject in ["s\r\nBcc: eve@example.org", "s\nX: y", "s\0"] {
        assert!(matches!(
            send(&relay, &mail(&["ada@example.com"], subject), NOW).await,
            Err(GrantError::Invalid(_))
        ));
    }
    for to in
        ["ada@example.com\r\nBcc: eve@example.org", "ada@example.com>\r\nRCPT TO:<eve@example.org", "", "ada"]
    {
        assert!(matches!(send(&relay, &mail(&[to], "s"), NOW).await, Err(GrantError::Invalid(_))), "{to}");
    }
    assert_eq!(server.connections(), 0, "nothing was sent");
    let id = "x>\r\nBcc: eve@example.org";
    send(&relay, &MailMessage { id: id.into(), ..mail(&["ada@example.com"], "s") }, NOW).await.unwrap();
    assert!(!server.received()[0].data.contains("eve"), "{:?}", server.received());
}

#[tokio::test]
async fn what_the_settings_do_not_allow_is_refused_before_the_server_is_asked() {
    let (server, relay) = plain().await;
    let denied = send(&relay, &mail(&["eve@example.org"], "s"), NOW).await;
    assert!(matches!(denied, Err(GrantError::Denied(_))), "{denied:?}");
    let many: Vec<_> = (0..=RECIPIENTS_MOST).map(|n| format!("a{n}@example.com")).collect();
    let many = MailMessage { to: many, ..mail(&[], "s") };
    assert!(matches!(send(&relay, &many, NOW).await, Err(GrantError::Invalid(_))));
    let large = MailMessage { text: "x".repeat(300 << 10), ..mail(&["ada@example.com"], "s") };
    assert!(matches!(send(&relay, &large, NOW).await, Err(GrantError::TooLarge(_))));
    assert_eq!(server.connections(), 0);
    let slow = MailRelay::open(&MailSpec { rate: 1, ..spec(&server) }).await.unwrap();
    send(&slow, &mail(&["ada@example.com"], "s"), NOW).await.unwrap();
    let limited = send(&slow, &mail(&["ada@example.com"], "s"), NOW).await;
    assert!(matches!(limited, Err(GrantError::RateLimited { .. })), "{limited:?}");
}

#[tokio::test]
async fn a_refused_message_is_the_plugins_and_a_server_that_is_away_is_not() {
    let (server, relay) = plain().await;
    let refused = send(&relay, &mail(&["ada@example.com"], "spam"), NOW).await;
    assert!(matches!(&refused, Err(GrantError::Invalid(why)) if why.contains("this is spam")), "{refused:?}");
    drop(server);
    tokio::task::yield_now().await;
    let away = send(&relay, &mail(&["ada@example.com"], "s"), NOW).await;
    assert!(matches!(away, Err(GrantError::Unavailable(_))), "{away:?}");
}

#[tokio::test]
async fn a_server_that_never_ends_its_answer_is_cut_off() {
    let (server, _) = plain().await;
    let flood = MailSpec {
        from: "flood@example.com".into(),
        timeout: Span(Duration::from_secs(60)),
        ..spec(&server)
    };
    let relay = MailRelay::open(&flood).await.unwrap();
    let begun = Instant::now();
    let cut = send(&relay, &mail(&["ada@example.com"], "s"), NOW).await;
    assert!(matches!(cut, Err(GrantError::Unavailable(_))), "{cut:?}");
    assert!(begun.elapsed() < Duration::from_secs(30), "by the bytes and not by the time");
}

#[tokio::test]
async fn a_server_that_never_answers_costs_the_time_out() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (server, _) = plain().await;
    let port = Some(listener.local_addr().unwrap().port());
    let silent = MailSpec { port, timeout: Span(Duration::from_millis(200)), ..spec(&server) };
    let relay = MailRelay::open(&silent).await.unwrap();
    let letter = relay.prepare_mail(&mail(&["ada@example.com"], "s"), NOW).unwrap();
    let waited = relay.send(letter).await.err().unwrap();
    assert!(matches!(waited.error, GrantError::Timeout(_)), "{}", waited.error);
    assert!(waited.is_unsent, "no byte of the message has left");
}

#[tokio::test]
async fn an_address_that_is_not_allowed_is_not_connected_to() {
    let (server, _) = plain().await;
    let named =
        MailSpec { server: "localhost".into(), addresses: vec![AddressRange::Public], ..spec(&server) };
    let relay = MailRelay::open(&named).await.unwrap();
    let refused = send(&relay, &mail(&["ada@example.com"], "s"), NOW).await;
    assert!(
        matches!(&refused, Err(GrantError::Unavailable(why)) if why.contains("a loopback address")),
        "{refused:?}"
    );
    assert_eq!(server.connections(), 0);
}

fn with_login(spec: MailSpec, folder: &Path, password: &str) -> MailSpec {
    let file = folder.join("password");
    std::fs::write(&file, password).unwrap();
    let password_from = SecretRef::File(file.to_str().unwrap().into());
    MailSpec { login: Some(MailLogin { user: "ada".into(), password_from }), ..spec }
}

#[tokio::test]
async fn with_tls_the_login_and_the_message_are_encrypted_and_the_certificate_is_checked() {
    if !tls::is_installed() {
        return kubewitness_harness::skip("mail::tls", "openssl is not installed");
    }
    let folder = tempfile::tempdir().unwrap();
    let certificates = tls::make(folder.path()).unwrap();
    for (encryption, tls) in
        [(Encryption::StartTls, MailTls::StartTls), (Encryption::Implicit, MailTls::Implicit)]
    {
        let server = MailServer::start(encryption, Some(&certificates)).await.unwrap();
        let ca = Some(certificates.authority.to_str().unwrap().to_owned());
        let known = MailSpec { tls, ca, ..with_login(spec(&server), folder.path(), "right") };
        let relay = MailRelay::open(&known).await.unwrap();
        assert_eq!(send(&relay, &mail(&["ada@example.com"], "s"), NOW).await.unwrap(), []);
        let received = server.received();
        assert!(received[0].is_encrypted, "{received:?}");
        assert_eq!(received[0].login.as_deref(), Some("AGFkYQByaWdodA=="));

        std::fs::write(folder.path().join("password"), "wrong").unwrap();
        let refused = send(&relay, &mail(&["ada@example.com"], "s"), NOW).await.unwrap_err();
        assert_eq!(refused, GrantError::Unavailable("the mail server refuses the login".into()));
        let stranger = MailRelay::open(&MailSpec { ca: None, ..known }).await.unwrap();
        let refused = send(&stranger, &mail(&["ada@example.com"], "s"), NOW).await;
        assert!(matches!(refused, Err(GrantError::Unavailable(_))), "{refused:?}");
        assert_eq!(server.received().len(), 1);
    }
    // A server without STARTTLS gets no message, and no password.
    let (server, _) = plain().await;
    let relay = MailRelay::open(&MailSpec { tls: MailTls::StartTls, ..spec(&server) }).await.unwrap();
    assert!(matches!(
        send(&relay, &mail(&["ada@example.com"], "s"), NOW).await,
        Err(GrantError::Unavailable(_))
    ));
    assert!(server.received().is_empty());
}

#[test]
fn a_servers_words_are_one_line_and_not_long() {
    assert_eq!(one_line_text("a\r\nb"), "a  b");
    assert_eq!(one_line_text(&"ü".repeat(1000)).chars().count(), WORDS);
}
