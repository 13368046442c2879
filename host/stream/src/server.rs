//! Connects to the server and its stream, and checks that the stream is the intended one.

use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::context::ContextBuilder;
use async_nats::jetstream::stream::{Config, DiscardPolicy, Info, RetentionPolicy, StorageType};
use async_nats::jetstream::{Context, ErrorCode, stream::Stream};
use async_nats::{Client, ConnectErrorKind, ConnectOptions};
use futures::future::BoxFuture;
use kubewitness_core::BoxedError;
use kubewitness_core::config::StreamSpec;
use percent_encoding::percent_decode_str;
use thiserror::Error;

use crate::message::MessageKeys;

/// The limit for connecting, and for each answer. A healthy server takes milliseconds.
const ANSWER: Duration = Duration::from_secs(5);
/// The prefix of the number of partitions in a stream's description. Older servers store nothing else that
/// can be read back.
const SIGN: &str = "kubewitness.dev/stream/v1 partitions=";

/// Reads a secret again each time, because it may be rotated.
pub type SecretReader = Arc<dyn Fn() -> BoxFuture<'static, Result<String, String>> + Send + Sync>;

/// The server can't be used now. The text says what to do, and never contains the address, which is secret.
#[derive(Debug, Error)]
#[error("the stream `{stream}`: {what}: {source}")]
pub(crate) struct ServerAway {
    stream: String,
    what: String,
    source: BoxedError,
}

/// A stream on a server.
#[derive(Clone)]
pub struct StreamServer {
    pub spec: StreamSpec,
    pub address: SecretReader,
    /// The content of a `.creds` file, if the server asks for one.
    pub credentials: Option<SecretReader>,
    /// The secret that signs messages, if they are signed.
    pub key: Option<SecretReader>,
    /// Identifies this process among carriers and readers. It is in no data folder, so a copy of one has
    /// another id.
    pub instance: Arc<str>,
}

/// A connection, and the stream's state when the connection was made.
pub(crate) struct ServerLink {
    pub client: Client,
    pub context: Context,
    pub stream: Stream<Info>,
}

impl StreamServer {
    /// The stream's name on the server.
    pub fn name(&self) -> String {
        format!("kubewitness-{}", self.spec.name)
    }

    pub(crate) fn state_subject(&self, source: &str, partition: u32) -> String {
        format!("kubewitness.{}.states.{source}.{partition}", self.spec.name)
    }

    /// The subject of a claim.
    pub(crate) fn claim_subject(&self, what: &str) -> String {
        format!("kubewitness.{}.{what}", self.spec.name)
    }

    pub(crate) fn server_away(&self, what: &str, source: impl Into<BoxedError>) -> ServerAway {
        ServerAway { stream: self.spec.name.clone(), what: what.to_owned(), source: source.into() }
    }

    pub(crate) async fn message_keys(&self) -> Result<Option<MessageKeys>, ServerAway> {
        let Some(key) = &self.key else { return Ok(None) };
        let text = key().await.map_err(|error| self.server_away("its key", error))?;
        MessageKeys::parse_keys(&text).map(Some).map_err(|error| self.server_away("its key", error))
    }

    async fn connect_client(&self) -> Result<(Client, Context), ServerAway> {
        let address = (self.address)().await.map_err(|error| self.server_away("its address", error))?;
        let servers: Result<Vec<_>, _> =
            address.split(',').map(|one| one.trim().parse::<async_nats::ServerAddr>()).collect();
        // The error's text would contain the address.
        let form = "it is none: write nats://user:password@host:4222, or tls://…";
        let servers = servers.map_err(|_| self.server_away("its address", form))?;
        let options = self.authenticated_options(&servers).await?;
        let each = servers.len();
        let options = options
            .name("kubewitness")
            // A server's INFO message names other servers. Somebody who modifies it in transit would get the
            // password in plain text.
            .ignore_discovered_servers()
            // One address with TLS means that nothing is sent in plain text, whatever the others say.
            .require_tls(servers.iter().any(async_nats::ServerAddr::tls_required))
            .connection_timeout(ANSWER)
            .request_timeout(Some(ANSWER))
            // Each server is tried once. After a lost connection the caller connects anew and looks at the stream again.
            .max_reconnects(each);
        let connecting = tokio::time::timeout(ANSWER, options.connect(servers));
        let late =
            |_| self.server_away("its server", format!("does not answer within {} s", ANSWER.as_secs()));
        let client = connecting.await.map_err(late)?;
        let client = client.map_err(|error| match error.kind() {
            ConnectErrorKind::Authentication | ConnectErrorKind::AuthorizationViolation => {
                let why = "check the user and the password in the secret of `urlFrom`, or `credentialsFrom`";
                self.server_away("its server does not let this controller in", why)
            }
            _ => self.server_away("its server can't be reached", error),
        })?;
        let context = ContextBuilder::new().timeout(ANSWER).ack_timeout(ANSWER).build(client.clone());
        Ok((client, context))
    }

    /// The client does not use the credentials in the address by itself.
    async fn authenticated_options(
        &self,
        servers: &[async_nats::ServerAddr],
    ) -> Result<ConnectOptions, ServerAway> {
        let options = ConnectOptions::new();
        if let Some(credentials) = &self.credentials {
            let text = credentials().await.map_err(|error| self.server_away("its credentials", error))?;
            let form = |_| self.server_away("its credentials", "they are not the content of a `.creds` file");
            return options.credentials(&text).map_err(form);
        }
        let plain = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
        let user = servers.iter().find_map(|server| Some((server.username()?, server.password())));
        Ok(match user {
            Some((user, Some(password))) => options.user_and_password(plain(user), plain(password)),
            Some((token, None)) => options.token(plain(token)),
            None => options,
        })
    }

    /// Connects a reader. If the stream does not exist, the reader waits for it.
    pub(crate) async fn connect_reader(&self) -> Result<ServerLink, ServerAway> {
        let (client, context) = self.connect_client().await?;
        let stream = context.get_stream(self.name()).await.map_err(|error| {
            let what =
                "it can't be opened on its server (is JetStream on?); the controller that carries to it creates it";
            self.server_away(what, error)
        })?;
        self.check(stream.cached_info())?;
        Ok(ServerLink { client, context, stream })
    }

    /// Connects a carrier. It creates a missing stream, and sets its size from the settings.
    pub(crate) async fn link_to_carry(&self) -> Result<ServerLink, ServerAway> {
        use async_nats::jetstream::context::GetStreamErrorKind::JetStream;
        let (client, context) = self.connect_client().await?;
        let config = self.stream_config();
        let stream = match context.get_stream(self.name()).await {
            Ok(stream) => stream,
            Err(error) if matches!(error.kind(), JetStream(e) if e.error_code() == ErrorCode::STREAM_NOT_FOUND) =>
            {
                let made = context.create_stream(config.clone()).await;
                made.map_err(|error| self.server_away("it can't be created on its server", error))?
            }
            Err(error) => {
                return Err(self.server_away("it can't be opened on its server (is JetStream on?)", error));
            }
        };
        self.check(stream.cached_info())?;
        let is = &stream.cached_info().config;
        let of = |config: &Config| (config.max_bytes, config.duplicate_window, config.num_replicas);
        if of(is) != of(&config) {
            // The server would drop messages beyond the size.
            let held = stream.cached_info().state.bytes;
            if config.max_bytes < is.max_bytes && held > self.spec.max_bytes.0 {
                let why = format!("{} MiB in it are not read yet", held >> 20);
                return Err(self
                    .server_away("`maxBytes` can't be lowered now: wait until its readers have read", why));
            }
            let changed = context.update_stream(Config { subjects: is.subjects.clone(), ..config }).await;
            changed
                .map_err(|error| self.server_away("its settings can't be changed on the server", error))?;
        }
        Ok(ServerLink { client, context, stream })
    }

    fn stream_config(&self) -> Config {
        let spec = &self.spec;
        Config {
            name: self.name(),
            description: Some(format!("{SIGN}{}", spec.partitions)),
            subjects: vec![format!("kubewitness.{}.states.>", spec.name)],
            retention: RetentionPolicy::Limits,
            // Unread messages must never be dropped; the carrier waits instead.
            discard: DiscardPolicy::New,
            max_bytes: i64::try_from(spec.max_bytes.0).unwrap_or(i64::MAX),
            storage: StorageType::File,
            num_replicas: spec.replicas as usize,
            duplicate_window: spec.window.0,
            ..Config::default()
        }
    }

    fn check(&self, info: &Info) -> Result<(), ServerAway> {
        let description = info.config.description.as_deref().unwrap_or_default();
        let Some(partitions) = description.strip_prefix(SIGN) else {
            let why =
                format!("`{}` on the server is not one of Kubewitness: choose another name", self.name());
            return Err(self.server_away("it is another", why));
        };
        if partitions != self.spec.partitions.to_string() {
            let why = format!(
                "the server's has {partitions} and the settings say {}: they can't be changed, so take another \
                 name for other partitions",
                self.spec.partitions
            );
            return Err(self.server_away("its partitions", why));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use kubewitness_harness::tls::{self, TlsAcceptor};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    /// The kernel accepts connections, and nothing ever reads from them. Time is paused and advances when
    /// nothing else happens.
    #[tokio::test(start_paused = true)]
    async fn a_server_that_says_nothing_is_given_up_after_its_time() {
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let server = server_at(format!("nats://{}", silent.local_addr().unwrap()));
        let began = tokio::time::Instant::now();
        let Err(away) = server.connect_reader().await else { panic!("nobody answers") };
        let why = away.to_string();
        assert!(why.starts_with("the stream `platform`: its server"), "{why}");
        assert!(began.elapsed() <= 2 * ANSWER, "{:?}", began.elapsed());
    }

    fn server_at(address: String) -> StreamServer {
        let spec = serde_json::from_str(r#"{"name": "platform", "urlFrom": {"env": "UNUSED"}}"#).unwrap();
        let address: SecretReader = Arc::new(move || Box::pin(std::future::ready(Ok(address.clone()))));
        StreamServer { spec, address, credentials: None, key: None, instance: "a1".into() }
    }

    async fn listen() -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        (listener, address)
    }

    async fn info(socket: &mut TcpStream, other: &str) {
        let info = format!(
            "INFO {{\"server_id\":\"a\",\"version\":\"2.10.0\",\"max_payload\":1048576,\"connect_urls\":[\"{other}\"]}}\r\n"
        );
        socket.write_all(info.as_bytes()).await.unwrap();
    }

    /// One address has TLS, and the other one does not ask for it.
    #[tokio::test]
    async fn with_tls_in_one_address_nothing_goes_in_the_clear_to_another() {
        // It installs what TLS is made with.
        drop(kubewitness_harness::http());
        let ((first, one), (second, two)) = (listen().await, listen().await);
        let server = server_at(format!("tls://user:hush@{one},nats://user:hush@{two}"));
        let heard = async {
            let mut heard = Vec::new();
            loop {
                let (mut socket, _) = tokio::select! {
                    socket = first.accept() => socket.unwrap(),
                    socket = second.accept() => socket.unwrap(),
                };
                info(&mut socket, "127.0.0.1:1").await;
                let mut said = [0; 64];
                let read = socket.read(&mut said).await.unwrap();
                heard.push(said[..read].to_vec());
                if heard.len() == 2 {
                    return heard;
                }
            }
        };
        let (connected, heard) = tokio::join!(server.connect_client(), heard);
        assert!(connected.is_err());
        for said in heard {
            // The first byte of a TLS handshake. `CONNECT` would have the password.
            assert_eq!(said.first(), Some(&0x16), "{}", String::from_utf8_lossy(&said));
        }
    }

    /// As a real server with TLS: it lets a client in, and ends the connection. On the way to the client somebody has put
    /// a clear address into what it says first.
    async fn let_in(listener: &TcpListener, acceptor: &TlsAcceptor, other: &str) {
        let (mut socket, _) = listener.accept().await.unwrap();
        info(&mut socket, other).await;
        let Ok(mut socket) = acceptor.accept(socket).await else { return };
        let mut text = String::new();
        while !text.contains("PING") {
            let mut part = [0; 4096];
            match socket.read(&mut part).await {
                Ok(read) if read > 0 => text += &String::from_utf8_lossy(&part[..read]),
                _ => return,
            }
        }
        assert!(text.contains("hush"), "the password goes to the server that was named: {text}");
        socket.write_all(b"PONG\r\n").await.unwrap();
        socket.flush().await.unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
    }

    /// A client trusts the authorities that its environment names, and those of a process never change: so the test runs
    /// itself once more.
    #[tokio::test]
    async fn a_lost_connection_with_tls_is_not_made_again_in_the_clear_wherever_another_server_is_named() {
        const ITSELF: &str = "server::tests::\
            a_lost_connection_with_tls_is_not_made_again_in_the_clear_wherever_another_server_is_named";
        const FOLDER: &str = "KUBEWITNESS_TLS_TEST";
        let Some(folder) = std::env::var_os(FOLDER) else {
            if !tls::is_installed() {
                return kubewitness_harness::skip("stream::tls", "openssl is not installed");
            }
            let folder = tempfile::tempdir().unwrap();
            let made = tls::make(folder.path()).unwrap();
            let mut again = std::process::Command::new(std::env::current_exe().unwrap());
            again.args(["--exact", ITSELF]).env(FOLDER, folder.path()).env("SSL_CERT_FILE", made.authority);
            let output = again.output().unwrap();
            let stdout = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && stdout.contains("1 passed"), "{stdout}");
            return;
        };
        drop(kubewitness_harness::http());
        let acceptor =
            tls::TestCertificates::in_folder(std::path::Path::new(&folder)).acceptor(false).unwrap();
        // A client chooses among the addresses that it knows by chance.
        for _ in 0..8 {
            let ((own, address), (other, named)) = (listen().await, listen().await);
            let server = server_at(format!("tls://user:hush@{address}"));
            let named = named.to_string();
            let lost = async {
                let (client, _) = server.connect_client().await.unwrap();
                let has_gone = || client.connection_state() == async_nats::connection::State::Disconnected;
                while !has_gone() {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                tokio::time::sleep(Duration::from_millis(300)).await;
            };
            let serving = async {
                let_in(&own, &acceptor, &named).await;
                // Nobody answers there any more.
                drop(own);
                std::future::pending::<()>().await;
            };
            tokio::select! {
                () = serving => unreachable!("it never ends"),
                () = lost => {}
                _ = other.accept() => panic!("an address that an INFO in the clear has named got a connection"),
            }
        }
    }
}
