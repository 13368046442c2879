//! A reader's position in each partition, as text. The journal stores it as the source's checkpoint, in the
//! transaction that stores the states.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::{GarbledMessage, JournalPosition};
use crate::state::Seq;

/// The most former lines that a partition's position keeps. Each kill of the carrier begins a line, and
/// messages of former lines may arrive again until the stream has removed them, about a second after they
/// were read.
const FORMER_LINES: usize = 4;

/// The last state that was accepted in a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionPosition {
    pub line: Arc<str>,
    pub position: Seq,
    /// The version of its object.
    pub version: Arc<str>,
    /// The lines before this one, oldest first, and how far each was read.
    pub former: Vec<(Arc<str>, Seq)>,
}

impl PartitionPosition {
    /// Whether this state was accepted before.
    pub fn was_accepted(&self, stood: &JournalPosition) -> bool {
        self.all_lines().any(|(line, position)| *line == stood.line && stood.position <= position)
    }

    /// The last read position of the history that leads to this state; `None` if that is the history of
    /// another journal. A line that continues earlier ones names them.
    pub fn read_through(&self, stood: &JournalPosition) -> Option<Seq> {
        if self.line == stood.line {
            return Some(self.position);
        }
        let agree = self.all_lines().filter(|(line, _)| stood.before_lines.contains(line));
        agree.map(|(_, position)| position).max()
    }

    /// The position after the next state of a partition.
    pub fn place_after(place: Option<&Self>, stood: &JournalPosition, version: &str) -> Self {
        let former = match place {
            Some(place) if place.line == stood.line => place.former.clone(),
            place => Self::former_of(place, stood),
        };
        Self { line: stood.line.clone(), position: stood.position, version: version.into(), former }
    }

    /// The former lines of a state's position: those that were read, and before them those that the new line
    /// names. The named lines agree with it up to the previous state, so nothing of them is missing up to
    /// there.
    fn former_of(place: Option<&Self>, stood: &JournalPosition) -> Vec<(Arc<str>, Seq)> {
        let known = place.into_iter().flat_map(|place| {
            let former = place.former.iter().filter(|(line, _)| *line != place.line).cloned();
            former.chain([(place.line.clone(), place.position)])
        });
        let raised = |(line, position): (Arc<str>, Seq)| match stood.before_lines.contains(&line) {
            true => (line, position.max(stood.before)),
            false => (line, position),
        };
        let known: Vec<_> = known.filter(|(line, _)| *line != stood.line).map(raised).collect();
        let is_new = |line: &&Arc<str>| known.iter().all(|(former, _)| former != *line);
        let named = stood.before_lines.iter().filter(is_new).map(|line| (line.clone(), stood.before));
        let mut former: Vec<_> = named.chain(known.iter().cloned()).collect();
        former.drain(..former.len().saturating_sub(FORMER_LINES));
        former
    }

    fn all_lines(&self) -> impl Iterator<Item = (&Arc<str>, Seq)> {
        let former = self.former.iter().map(|(line, position)| (line, *position));
        std::iter::once((&self.line, self.position)).chain(former)
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
        let garbled = || GarbledMessage::NoPositions(text.to_owned());
        let mut words = text.split(' ');
        let reader = words.next().and_then(|word| word.strip_prefix("reader:")).ok_or_else(garbled)?;
        let mut of = BTreeMap::new();
        for word in words {
            if let Some((partition, former)) = word.split_once('~') {
                let (line, position) = former.split_once(':').ok_or_else(garbled)?;
                let partition: u32 = partition.parse().map_err(|_| garbled())?;
                let place: &mut PartitionPosition = of.get_mut(&partition).ok_or_else(garbled)?;
                // A version of this program that keeps one line takes the last entry.
                place.former.push((line.into(), position.parse().map_err(|_| garbled())?));
                continue;
            }
            let mut parts = word.splitn(4, ':');
            let mut part = || parts.next().ok_or_else(garbled);
            let (partition, line, position, version) = (part()?, part()?, part()?, part()?);
            let place = PartitionPosition {
                line: line.into(),
                position: position.parse().map_err(|_| garbled())?,
                version: unescape_version(version).into(),
                former: Vec::new(),
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
            write!(f, " {partition}:{line}:{position}:{}", escape_version(version))?;
            for (line, position) in former {
                write!(f, " {partition}~{line}:{position}")?;
            }
        }
        Ok(())
    }
}

/// A version is a text from the API server. A blank in it would end the entry, and a `~` would mark it as a
/// former one.
fn escape_version(version: &str) -> String {
    version.replace('%', "%25").replace(' ', "%20").replace('~', "%7E")
}

fn unescape_version(version: &str) -> String {
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
                former: vec![("z9".into(), 2), ("b7".into(), 3)],
            };
            let places = ReaderPositions { reader: "b2".into(), of: [(0, place)].into() };
            assert_eq!(ReaderPositions::parse(&places.to_string()).unwrap(), places, "{version}");
        }
    }

    #[test]
    fn a_place_remembers_few_lines_and_each_once() {
        let stood = |line: &str| JournalPosition {
            line: line.into(),
            position: 9,
            before: 3,
            before_lines: vec!["a".into()],
        };
        let mut place = PartitionPosition::place_after(None, &stood("0"), "1");
        assert_eq!(place.former, [("a".into(), 3)], "the new line agrees with it up to there");
        for line in ["1", "2", "3", "2", "4", "5"] {
            place = PartitionPosition::place_after(Some(&place), &stood(line), "1");
        }
        let lines: Vec<_> = place.former.iter().map(|(line, _)| &**line).collect();
        assert_eq!(lines, ["1", "3", "2", "4"]);
        assert_eq!(PartitionPosition::place_after(Some(&place), &stood("5"), "1"), place);
        assert!(place.was_accepted(&stood("1")) && !place.was_accepted(&stood("0")));
    }

    #[test]
    fn what_is_written_is_read_and_nothing_else_is_taken_for_it() {
        let place = |position| PartitionPosition {
            line: "a1".into(),
            position,
            version: "12:x".into(),
            former: (position == 4).then(|| ("z9".into(), 70)).into_iter().collect(),
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
