//! Claims on a stream: which journal carries to it, and which controller reads each partition. The server keeps
//! them beside the stream.

use async_nats::jetstream::Context;
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::stream::{Config, Info, RawMessageErrorKind, StorageType, Stream};
use kubewitness_core::Seq;

use crate::server::{Away, Server};

/// A claim on the server: its text, and the number under which it may be replaced.
struct Found {
    text: String,
    sequence: u64,
}

/// The claim of a carrier.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Carries {
    /// The id of its journal.
    pub line: String,
    /// The last position that was carried.
    pub position: Seq,
    pub id: String,
    pub sources: Vec<String>,
}

impl Carries {
    fn text(&self) -> String {
        format!("{} {} {} {}", self.line, self.sources.join(","), self.position, self.id)
    }

    fn parse(text: &str) -> Option<Self> {
        let mut words = text.splitn(4, ' ');
        let (line, sources) =
            (words.next()?.to_owned(), words.next()?.split(',').map(str::to_owned).collect());
        Some(Self { line, sources, position: words.next()?.parse().ok()?, id: words.next()?.to_owned() })
    }
}

pub(crate) struct Claims {
    server: Server,
    context: Context,
    stream: Stream<Info>,
}

impl Claims {
    pub async fn open(server: &Server, context: &Context) -> Result<Self, Away> {
        let config = Config {
            name: format!("{}_claims", server.name()),
            subjects: vec![server.claim("readers.>"), server.claim("carrier")],
            max_messages_per_subject: 1,
            storage: StorageType::File,
            num_replicas: server.spec.replicas as usize,
            ..Config::default()
        };
        let stream = context.get_or_create_stream(config).await;
        let stream = stream
            .map_err(|error| server.away("its carrier and readers can't be read from its server", error))?;
        Ok(Self { server: server.clone(), context: context.clone(), stream })
    }

    async fn find(&self, subject: &str) -> Result<Option<Found>, Away> {
        match self.stream.get_last_raw_message_by_subject(subject).await {
            Ok(found) => {
                let text = String::from_utf8_lossy(&found.payload).into_owned();
                Ok(Some(Found { text, sequence: found.sequence }))
            }
            Err(error) if matches!(error.kind(), RawMessageErrorKind::NoMessageFound) => Ok(None),
            Err(error) => {
                Err(self.server.away("its carrier and readers can't be read from its server", error))
            }
        }
    }

    /// Writes a claim only if the one that was found is still there.
    async fn put(&self, subject: String, text: String, found: u64) -> Result<u64, Away> {
        let failed =
            |error: String| self.server.away("its carrier and readers can't be written to its server", error);
        let claim = PublishMessage::build().payload(text.into()).expected_last_subject_sequence(found);
        let sent =
            self.context.send_publish(subject, claim).await.map_err(|error| failed(error.to_string()))?;
        Ok(sent.await.map_err(|error| failed(error.to_string()))?.sequence)
    }

    /// Claims partitions for a reader. Each partition has one reader, because what is read is removed from
    /// the stream.
    pub async fn reads(
        &self,
        source: &str,
        partition: u32,
        reader: &str,
        take_over: Option<&str>,
    ) -> Result<(), Away> {
        let subject = self.server.claim(&format!("readers.{source}.{partition}"));
        let found = self.find(&subject).await?;
        match &found {
            Some(Found { text, .. }) if text == reader => return Ok(()),
            Some(Found { text: holder, .. }) if Some(holder.as_str()) != take_over => {
                let why = format!(
                    "partition {partition} of `{source}` is read by `{holder}`: give each partition to one \
                     controller; if that one no longer reads it, write `takeOver: {holder}` here"
                );
                return Err(self.server.away("another controller reads it", why));
            }
            _ => {}
        }
        self.put(subject, reader.to_owned(), found.map_or(0, |found| found.sequence)).await.map(drop)
    }

    /// The claim of the carrier; `None` before the first.
    pub async fn carrier(&self) -> Result<Option<(Carries, u64)>, Away> {
        let found = self.find(&self.server.claim("carrier")).await?;
        Ok(found.and_then(|Found { text, sequence }| Some((Carries::parse(&text)?, sequence))))
    }

    pub async fn carries(&self, carries: &Carries, found: u64) -> Result<u64, Away> {
        self.put(self.server.claim("carrier"), carries.text(), found).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_of_a_carrier_is_read_again() {
        let sources = vec!["jobs".to_owned(), "pods".to_owned()];
        for (position, id) in [(7, "jobs/0/batch/Job/u 1/7"), (0, "")] {
            let carries = Carries { line: "a1".into(), position, id: id.into(), sources: sources.clone() };
            assert_eq!(Carries::parse(&carries.text()), Some(carries));
        }
        assert_eq!(Carries::parse("hello"), None);
    }
}
