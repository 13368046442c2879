//! Who carries to a stream, and who reads which part of it: kept on the server, beside the stream.

use async_nats::jetstream::Context;
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::stream::{Config, Info, RawMessageErrorKind, StorageType, Stream};
use kubewitness_core::Seq;

use crate::server::{Away, Server};

/// What a server has of somebody: the text, and the number under which it may be replaced.
struct Found {
    text: String,
    sequence: u64,
}

/// Who carries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Carries {
    /// Of which journal.
    pub line: String,
    /// The last that was carried of it.
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
        let stream = stream.map_err(|error| server.away("who carries and reads it can't be found", error))?;
        Ok(Self { server: server.clone(), context: context.clone(), stream })
    }

    async fn find(&self, subject: &str) -> Result<Option<Found>, Away> {
        match self.stream.get_last_raw_message_by_subject(subject).await {
            Ok(found) => {
                let text = String::from_utf8_lossy(&found.payload).into_owned();
                Ok(Some(Found { text, sequence: found.sequence }))
            }
            Err(error) if matches!(error.kind(), RawMessageErrorKind::NoMessageFound) => Ok(None),
            Err(error) => Err(self.server.away("who carries and reads it can't be found", error)),
        }
    }

    /// Only in the place of what was found.
    async fn put(&self, subject: String, text: String, found: u64) -> Result<u64, Away> {
        let failed = |error: String| self.server.away("it can't be told who carries and reads it", error);
        let claim = PublishMessage::build().payload(text.into()).expected_last_subject_sequence(found);
        let sent =
            self.context.send_publish(subject, claim).await.map_err(|error| failed(error.to_string()))?;
        Ok(sent.await.map_err(|error| failed(error.to_string()))?.sequence)
    }

    /// Each partition has one reader: what it has read is taken from the stream.
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
                    "partition {partition} of `{source}` is read by another host, `{holder}`: give each partition to \
                     one host; if that one no longer reads it, say `takeOver: {holder}` here"
                );
                return Err(self.server.away("it is not for this host", why));
            }
            _ => {}
        }
        self.put(subject, reader.to_owned(), found.map_or(0, |found| found.sequence)).await.map(drop)
    }

    /// Who carries to it; `None` before anybody did.
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
