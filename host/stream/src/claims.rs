//! Claims on a stream: which journal carries to it, and which controller reads each partition. The server
//! stores them beside the stream.

use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::Context;
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::stream::{Config, Info, RawMessageErrorKind, StorageType, Stream};
use kubewitness_core::stream::{CarrierClaim, ReaderCandidate, ReaderClaim, ReaderStart};
use tokio::time::Instant;

use crate::server::{ServerAway, StreamServer};

/// The process that holds a claim. Without it, the claim was released.
const INSTANCE: &str = "Kubewitness-Instance";
/// How often a process renews its claims.
pub(crate) const RENEW: Duration = Duration::from_secs(3);
/// Another process may take a claim that was not renewed for this long. The holder renews it before it sends
/// or reads anything, so the two do not overlap. In addition, each message must follow the last one that its
/// sender knows.
const LAPSE: Duration = Duration::from_secs(12);

/// A claim on the server: its text, and the number with which it can be replaced.
struct FoundClaim {
    text: String,
    instance: Option<Arc<str>>,
    sequence: u64,
}

/// Watches whether the claim of another process is renewed. Its age counts from the first look, because the
/// clocks of machines differ.
#[derive(Default)]
pub(crate) struct LapseWatch {
    seen: Option<(u64, Instant)>,
}

impl LapseWatch {
    pub fn has_lapsed(&mut self, sequence: u64) -> bool {
        match self.seen {
            Some((seen, since)) if seen == sequence => since.elapsed() > LAPSE,
            _ => {
                self.seen = Some((sequence, Instant::now()));
                false
            }
        }
    }
}

/// The former lines are in a field where earlier versions wrote the id of a state. Only texts in the form of
/// a line's name are accepted.
fn carrier_text(claim: &CarrierClaim) -> String {
    let CarrierClaim { line, former, sources, position, .. } = claim;
    format!("{line} {} {position} {}", sources.join(","), former.join(","))
}

fn parse_carrier(text: &str, instance: Option<Arc<str>>) -> Option<CarrierClaim> {
    let mut words = text.splitn(4, ' ');
    let line = words.next()?.into();
    let sources = words.next()?.split(',').map(str::to_owned).collect();
    let position = words.next()?.parse().ok()?;
    let is_line = |word: &&str| word.len() == 16 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
    let former: Vec<_> = words.next()?.split(',').collect();
    let former = match former.iter().all(is_line) {
        true => former.into_iter().map(Arc::from).collect(),
        false => Vec::new(),
    };
    Some(CarrierClaim { line, former, sources, position, instance })
}

/// The remedy for a refused copy.
pub(crate) const ONE_COPY: &str = "run one of the two, and give a copy a stream of its own. A process that was killed \
    is followed within a minute";

/// A reader's claim on a partition.
pub(crate) struct PartitionClaim {
    pub source: String,
    pub partition: u32,
    pub reader: String,
    /// The number of the claim, once it exists.
    sequence: u64,
    lapse: LapseWatch,
}

impl PartitionClaim {
    pub fn new(source: &str, partition: u32, reader: &str) -> Self {
        let (source, reader) = (source.to_owned(), reader.to_owned());
        Self { source, partition, reader, sequence: 0, lapse: LapseWatch::default() }
    }
}

pub(crate) struct ServerClaims {
    server: StreamServer,
    context: Context,
    stream: Stream<Info>,
}

impl ServerClaims {
    pub async fn open(server: &StreamServer, context: &Context) -> Result<Self, ServerAway> {
        let config = Config {
            name: format!("{}_claims", server.name()),
            subjects: vec![server.claim_subject("readers.>"), server.claim_subject("carrier")],
            max_messages_per_subject: 1,
            storage: StorageType::File,
            num_replicas: server.spec.replicas as usize,
            ..Config::default()
        };
        let stream = context.get_or_create_stream(config).await;
        let stream = stream.map_err(|error| {
            server.server_away("its carrier and readers can't be read from its server", error)
        })?;
        Ok(Self { server: server.clone(), context: context.clone(), stream })
    }

    async fn find(&self, subject: &str) -> Result<Option<FoundClaim>, ServerAway> {
        match self.stream.get_last_raw_message_by_subject(subject).await {
            Ok(found) => {
                let text = String::from_utf8_lossy(&found.payload).into_owned();
                let instance = found.headers.get(INSTANCE).map(|instance| instance.as_str().into());
                Ok(Some(FoundClaim { text, instance, sequence: found.sequence }))
            }
            Err(error) if matches!(error.kind(), RawMessageErrorKind::NoMessageFound) => Ok(None),
            Err(error) => {
                Err(self.server.server_away("its carrier and readers can't be read from its server", error))
            }
        }
    }

    /// Writes a claim only if the found one is still there.
    async fn put_claim(
        &self,
        subject: String,
        text: String,
        instance: Option<&str>,
        found: u64,
    ) -> Result<u64, ServerAway> {
        let failed = |error: String| {
            self.server.server_away("its carrier and readers can't be written to its server", error)
        };
        let mut claim = PublishMessage::build().payload(text.into());
        if let Some(instance) = instance {
            claim = claim.header(INSTANCE, instance);
        }
        let claim = claim.expected_last_subject_sequence(found);
        let sent =
            self.context.send_publish(subject, claim).await.map_err(|error| failed(error.to_string()))?;
        Ok(sent.await.map_err(|error| failed(error.to_string()))?.sequence)
    }

    /// Claims partitions for a reader: all of them, or none, so that two readers can't keep each other from a part. Each
    /// partition has one reader, because messages are removed from the stream once they are read. All are looked at, also
    /// if one is refused: else the claims of a process that was killed would be seen to lapse one after the other.
    pub async fn claim_partitions(
        &self,
        held: &mut [PartitionClaim],
        take_over: Option<&str>,
    ) -> Result<(), ServerAway> {
        let mut refused = None;
        for claim in held.iter_mut() {
            let why = self.refusal_of(claim, take_over).await?;
            refused = refused.or(why);
        }
        if let Some(why) = refused {
            return Err(self.server.server_away("another controller reads it", why));
        }
        for claim in held {
            self.renew_partition(claim).await?;
        }
        Ok(())
    }

    /// Looks at the claim on a partition. Returns why it is refused, if it is.
    async fn refusal_of(
        &self,
        claim: &mut PartitionClaim,
        take_over: Option<&str>,
    ) -> Result<Option<String>, ServerAway> {
        let PartitionClaim { source, partition, reader, sequence, lapse } = claim;
        let found = self.find(&self.partition_subject(source, *partition)).await?;
        // The claim that is written next replaces this one alone.
        *sequence = found.as_ref().map_or(0, |found| found.sequence);
        let found = found.map(|FoundClaim { text, instance, .. }| ReaderClaim { reader: text, instance });
        let candidate = ReaderCandidate { reader, instance: &self.server.instance, take_over };
        Ok(match candidate.start(found.as_ref(), lapse.has_lapsed(*sequence)) {
            ReaderStart::Read => None,
            ReaderStart::HeldByInstance => Some(format!(
                "another process reads partition {partition} of `{source}` with this journal, or a copy of it: \
                 {ONE_COPY}"
            )),
            ReaderStart::HeldByReader => Some(format!(
                "partition {partition} of `{source}` is read by `{0}`: give each partition to one controller; if \
                 that one no longer reads it, write `takeOver: {0}` here",
                found.map(|found| found.reader).unwrap_or_default()
            )),
        })
    }

    /// Fails if another reader has taken over the partition.
    pub async fn renew_partition(&self, claim: &mut PartitionClaim) -> Result<(), ServerAway> {
        let subject = self.partition_subject(&claim.source, claim.partition);
        let (text, instance) = (claim.reader.clone(), Some(&*self.server.instance));
        claim.sequence = self.put_claim(subject, text, instance, claim.sequence).await?;
        Ok(())
    }

    /// Lets another process of this reader begin at once.
    pub async fn release_partition(&self, claim: &PartitionClaim) -> Result<(), ServerAway> {
        let subject = self.partition_subject(&claim.source, claim.partition);
        self.put_claim(subject, claim.reader.clone(), None, claim.sequence).await.map(drop)
    }

    fn partition_subject(&self, source: &str, partition: u32) -> String {
        self.server.claim_subject(&format!("readers.{source}.{partition}"))
    }

    /// The claim of the carrier; `None` before the first one.
    pub async fn carrier_claim(&self) -> Result<Option<(CarrierClaim, u64)>, ServerAway> {
        let found = self.find(&self.server.claim_subject("carrier")).await?;
        Ok(found.and_then(|FoundClaim { text, instance, sequence }| {
            Some((parse_carrier(&text, instance)?, sequence))
        }))
    }

    pub async fn put_carrier_claim(&self, claim: &CarrierClaim, found: u64) -> Result<u64, ServerAway> {
        self.put_claim(
            self.server.claim_subject("carrier"),
            carrier_text(claim),
            claim.instance.as_deref(),
            found,
        )
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_claim_of_a_carrier_is_read_as_it_was_written() {
        let sources = vec!["jobs".to_owned(), "pods".to_owned()];
        for former in [vec![], vec!["00112233445566aa".into(), "b".repeat(16).into()]] {
            let claim = CarrierClaim {
                line: "a1".into(),
                former,
                sources: sources.clone(),
                position: 7,
                instance: Some("b2".into()),
            };
            assert_eq!(parse_carrier(&carrier_text(&claim), Some("b2".into())), Some(claim));
        }
        assert_eq!(parse_carrier("hello", None), None);
        let earlier = parse_carrier("a1 jobs,pods 7 jobs/0/batch/Job/u 1/7", None).unwrap();
        assert_eq!((earlier.position, earlier.former), (7, vec![]), "the claim of an earlier version");
    }

    #[tokio::test(start_paused = true)]
    async fn a_claim_lapses_once_it_was_not_renewed_for_its_time() {
        let mut watch = LapseWatch::default();
        for sequence in 1..5 {
            assert!(!watch.has_lapsed(sequence));
            tokio::time::advance(LAPSE).await;
        }
        assert!(!watch.has_lapsed(4));
        tokio::time::advance(RENEW).await;
        assert!(watch.has_lapsed(4));
        assert!(!watch.has_lapsed(5));
    }
}
