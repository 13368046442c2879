//! A mail server for tests: plain, with STARTTLS or encrypted from its first byte. It keeps what it is given.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::tls::TestCertificates;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encryption {
    None,
    StartTls,
    Implicit,
}

/// One message, as the server was given it.
#[derive(Clone, Debug)]
pub struct ReceivedMail {
    pub from: String,
    pub to: Vec<String>,
    pub data: String,
    pub is_encrypted: bool,
    /// `\0USER\0PASSWORD` in base64, as AUTH PLAIN has it.
    pub login: Option<String>,
}

/// Runs until it is dropped.
pub struct MailServer {
    pub address: SocketAddr,
    mailbox: Arc<Mailbox>,
    server: tokio::task::JoinHandle<()>,
}

struct Mailbox {
    encryption: Encryption,
    acceptor: Option<TlsAcceptor>,
    received: Mutex<Vec<ReceivedMail>>,
    connections: Mutex<usize>,
    takes_all_addresses: AtomicBool,
}

impl Drop for MailServer {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl MailServer {
    /// Recipients whose name begins with `nobody` are refused for good, and with `later` for now. A subject with
    /// `spam` refuses the message, and the sender `flood@…` is answered without an end.
    pub async fn start(encryption: Encryption, certificates: Option<&TestCertificates>) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("binding a mail server")?;
        let address = listener.local_addr()?;
        let acceptor = certificates.map(|it| it.acceptor(false)).transpose()?;
        let mailbox = Arc::new(Mailbox {
            encryption,
            acceptor,
            received: Mutex::default(),
            connections: Mutex::default(),
            takes_all_addresses: AtomicBool::new(false),
        });
        let kept = mailbox.clone();
        #[allow(clippy::disallowed_methods)]
        let server = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                *lock(&kept.connections) += 1;
                // A client that breaks off ends its own connection.
                kept.serve(stream).await.ok();
            }
        });
        Ok(Self { address, mailbox, server })
    }

    /// From now on it offers SMTPUTF8: a recipient beyond ASCII is taken where the sender's line asks for it.
    pub fn take_all_addresses(&self) {
        self.mailbox.takes_all_addresses.store(true, Ordering::Relaxed);
    }

    pub fn received(&self) -> Vec<ReceivedMail> {
        lock(&self.mailbox.received).clone()
    }

    pub fn connections(&self) -> usize {
        *lock(&self.mailbox.connections)
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Mailbox {
    async fn serve(&self, stream: TcpStream) -> Result<()> {
        match (self.encryption, &self.acceptor) {
            (Encryption::Implicit, Some(acceptor)) => {
                self.talk(acceptor.accept(stream).await?, true, true).await?;
            }
            (Encryption::StartTls, Some(acceptor)) => {
                if let Some(stream) = self.talk(stream, false, true).await? {
                    self.talk(acceptor.accept(stream).await?, true, false).await?;
                }
            }
            _ => drop(self.talk(stream, false, true).await?),
        }
        Ok(())
    }

    /// Answers the stream where it is to be encrypted.
    async fn talk<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: S,
        is_encrypted: bool,
        greets: bool,
    ) -> Result<Option<S>> {
        let mut stream = BufReader::new(stream);
        if greets {
            stream.write_all(b"220 mail.test ready\r\n").await?;
        }
        let mut mail = ReceivedMail {
            from: String::new(),
            to: Vec::new(),
            data: String::new(),
            is_encrypted,
            login: None,
        };
        let takes_all = self.takes_all_addresses.load(Ordering::Relaxed);
        let mut is_asked = false;
        let mut line = String::new();
        loop {
            line.clear();
            if stream.read_line(&mut line).await? == 0 {
                return Ok(None);
            }
            let text = line.trim_end();
            let word = text.split([' ', ':']).next().unwrap_or_default().to_ascii_uppercase();
            let named = text.split(['<', '>']).nth(1).unwrap_or_default().to_owned();
            let answer = match word.as_str() {
                "EHLO" if self.encryption == Encryption::StartTls && !is_encrypted => {
                    "250-mail.test\r\n250-8BITMIME\r\n250 STARTTLS"
                }
                "EHLO" if takes_all => "250-mail.test\r\n250-8BITMIME\r\n250-SMTPUTF8\r\n250 AUTH PLAIN",
                "EHLO" => "250-mail.test\r\n250-8BITMIME\r\n250 AUTH PLAIN",
                "STARTTLS" => {
                    stream.write_all(b"220 go on\r\n").await?;
                    return Ok(Some(stream.into_inner()));
                }
                "AUTH" => {
                    mail.login = text.split(' ').nth(2).map(str::to_owned);
                    match mail.login.as_deref() {
                        // `\0ada\0wrong`
                        Some("AGFkYQB3cm9uZw==") => "535 wrong password: wrong",
                        _ => "235 welcome",
                    }
                }
                "MAIL" if named.starts_with("flood@") => loop {
                    stream.write_all(&[b'x'; 4096]).await?;
                },
                "MAIL" => {
                    is_asked = takes_all && text.split(' ').any(|word| word == "SMTPUTF8");
                    mail.from = named;
                    "250 fine"
                }
                "RCPT" if named.starts_with("nobody") => "550 no such\tuser",
                "RCPT" if !named.is_ascii() && !is_asked => "553 nobody asked for SMTPUTF8",
                "RCPT" if named.starts_with("later") => "451 the mailbox is busy",
                "RCPT" => {
                    mail.to.push(named);
                    "250 fine"
                }
                "DATA" => {
                    stream.write_all(b"354 go on\r\n").await?;
                    mail.data = data(&mut stream).await?;
                    if mail.data.contains("spam") {
                        "554 this is spam"
                    } else {
                        lock(&self.received).push(mail.clone());
                        "250 taken"
                    }
                }
                "QUIT" => {
                    stream.write_all(b"221 farewell\r\n").await?;
                    return Ok(None);
                }
                _ => "500 what?",
            };
            stream.write_all(format!("{answer}\r\n").as_bytes()).await?;
        }
    }
}

async fn data<S: AsyncRead + Unpin>(stream: &mut BufReader<S>) -> Result<String> {
    let mut data = String::new();
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await? == 0 || line == ".\r\n" {
            return Ok(data);
        }
        data.push_str(&line);
    }
}
