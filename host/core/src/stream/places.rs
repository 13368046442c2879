//! A reader's position in each partition, as text. The journal stores it as the source's checkpoint, in the
//! transaction that stores the states.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::{GarbledMessage, JournalPosition};
use crate::state::Seq;

/// The last state that was accepted in a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionPosition {
    pub line: Arc<str>,
    pub position: Seq,
    /// The version of its object.
    pub version: Arc<str>,
    /// The previous journal, and how far it was read.
    pub former: Option<(Arc<str>, Seq)>,
}

impl PartitionPosition {
    /// Whether this state was accepted before.
    pub fn has(&self, stood: &JournalPosition) -> bool {
        let is_former =
            |(line, position): &(Arc<str>, Seq)| *line == stood.line && stood.position <= *position;
        (self.line == stood.line && stood.position <= self.position)
            || self.former.as_ref().is_some_and(is_former)
    }

    /// The last read position of the history that leads to this state; `None` if that is the history of
    /// another journal. A line that continues an earlier one names it.
    pub fn read_through(&self, stood: &JournalPosition) -> Option<Seq> {
        let line = if self.line == stood.line { &stood.line } else { stood.before_line.as_ref()? };
        if self.line == *line {
            return Some(self.position);
        }
        self.former.as_ref().filter(|(former, _)| former == line).map(|(_, position)| *position)
    }
}

/// A reader and its place in each partition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReaderPositions {
    /// The name by which other readers know it.
    pub reader: String,
    pub of: BTreeMap<u32, PartitionPosition>,
}

impl ReaderPositions {
    pub fn parse(text: &str) -> Result<Self, GarbledMessage> {
        let garbled = || GarbledMessage(format!("`{text}` does not say how far a stream was read"));
        let mut words = text.split(' ');
        let reader = words.next().and_then(|word| word.strip_prefix("reader:")).ok_or_else(garbled)?;
        let mut of = BTreeMap::new();
        for word in words {
            if let Some((partition, former)) = word.split_once('~') {
                let (line, position) = former.split_once(':').ok_or_else(garbled)?;
                let partition: u32 = partition.parse().map_err(|_| garbled())?;
                let place: &mut PartitionPosition = of.get_mut(&partition).ok_or_else(garbled)?;
                place.former = Some((line.into(), position.parse().map_err(|_| garbled())?));
                continue;
            }
            let mut parts = word.splitn(4, ':');
            let mut part = || parts.next().ok_or_else(garbled);
            let (partition, line, position, version) = (part()?, part()?, part()?, part()?);
            let place = PartitionPosition {
                line: line.into(),
                position: position.parse().map_err(|_| garbled())?,
                version: unescaped(version).into(),
                former: None,
            };
            of.insert(partition.parse().map_err(|_| garbled())?, place);
        }
        Ok(Self { reader: reader.to_owned(), of })
    }
}

impl fmt::Display for ReaderPositions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "reader:{}", self.reader)?;
        for (partition, PartitionPosition { line, position, version, former }) in &self.of {
            write!(f, " {partition}:{line}:{position}:{}", escaped(version))?;
            if let Some((line, position)) = former {
                write!(f, " {partition}~{line}:{position}")?;
            }
        }
        Ok(())
    }
}

/// A version is a text from the API server. A blank in it would end the entry, and a `~` would mark it as a
/// former one.
fn escaped(version: &str) -> String {
    version.replace('%', "%25").replace(' ', "%20").replace('~', "%7E")
}

fn unescaped(version: &str) -> String {
    version.replace("%7E", "~").replace("%20", " ").replace("%25", "%")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_of_any_characters_is_read_as_it_was_written() {
        for version in ["a b", "1~2:3", "%20", "%257E ~", "ü:"] {
            let place = PartitionPosition {
                line: "a1".into(),
                position: 3,
                version: version.into(),
                former: Some(("z9".into(), 2)),
            };
            let places = ReaderPositions { reader: "b2".into(), of: [(0, place)].into() };
            assert_eq!(ReaderPositions::parse(&places.to_string()).unwrap(), places, "{version}");
        }
    }

    #[test]
    fn what_is_written_is_read_and_nothing_else_is_taken_for_it() {
        let place = |position| PartitionPosition {
            line: "a1".into(),
            position,
            version: "12:x".into(),
            former: (position == 4).then(|| ("z9".into(), 70)),
        };
        let places = ReaderPositions { reader: "b2".into(), of: [(0, place(3)), (3, place(4))].into() };
        assert_eq!(places.to_string(), "reader:b2 0:a1:3:12:x 3:a1:4:12:x 3~z9:70");
        assert_eq!(ReaderPositions::parse(&places.to_string()).unwrap(), places);
        assert_eq!(ReaderPositions::parse("reader:b2").unwrap().of.len(), 0);
        for wrong in [
            "",
            "1234",
            "reader:b2 0:a1:3",
            "reader:b2 x:a1:3:1",
            "reader:b2  ",
            "reader:b2 0~a1:3",
            "reader:b2 0:a1:3:1 0~a1",
        ] {
            assert!(ReaderPositions::parse(wrong).is_err(), "{wrong}");
        }
    }
}
