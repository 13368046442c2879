//! Applies faults of single events: the lines of a watch go in one by one, and come out as a faulty server
//! would send them.

use crate::apiserver::faults::FaultKind;
use crate::apiserver::objects::watch::error_frame;
use crate::apiserver::wire::error::ApiError;

/// The fate of a stream after a line.
#[derive(Debug, PartialEq, Eq)]
pub enum NextLine {
    Goes,
    Ends,
}

/// The faults of one watch, and its progress.
pub struct FrameFaults {
    plan: Vec<FaultKind>,
    /// The number of events that came in.
    events: u64,
    /// An event that waits for the next one.
    held: Option<Vec<u8>>,
    /// An incomplete line.
    rest: Vec<u8>,
}

impl FrameFaults {
    /// Returns `None` if no fault concerns events.
    pub fn new(faults: &[FaultKind]) -> Option<Self> {
        let plan: Vec<FaultKind> = faults.iter().filter(|what| is_of_events(what)).cloned().collect();
        (!plan.is_empty()).then(|| FrameFaults { plan, events: 0, held: None, rest: Vec::new() })
    }

    /// Writes what is sent before everything else.
    pub fn begin(&mut self, out: &mut Vec<u8>) -> NextLine {
        self.before(0, out)
    }

    /// Takes a part of the stream.
    pub fn take(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> NextLine {
        self.rest.extend_from_slice(bytes);
        while let Some(end) = self.rest.iter().position(|b| *b == b'\n') {
            let line: Vec<u8> = self.rest.drain(..=end).collect();
            if self.line(line, out) == NextLine::Ends {
                return NextLine::Ends;
            }
        }
        NextLine::Goes
    }

    /// Writes what remains when the stream has ended.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        out.extend(self.held.take().into_iter().flatten());
        out.append(&mut self.rest);
    }

    fn line(&mut self, line: Vec<u8>, out: &mut Vec<u8>) -> NextLine {
        if is_type(&line, "BOOKMARK") {
            self.bookmark(&line, out);
            return NextLine::Goes;
        }
        if is_type(&line, "ERROR") {
            out.extend(self.held.take().into_iter().flatten());
            out.extend_from_slice(&line);
            return NextLine::Goes;
        }
        self.events += 1;
        let event = self.events;
        if self.before(event, out) == NextLine::Ends {
            return NextLine::Ends;
        }
        let hits =
            |wanted: fn(&FaultKind) -> Option<u64>| self.plan.iter().filter_map(wanted).any(|at| at == event);
        if hits(|what| if let FaultKind::Drop(at) = what { Some(at.place()) } else { None }) {
            return NextLine::Goes;
        }
        if hits(|what| if let FaultKind::Swap(at) = what { Some(at.place()) } else { None }) {
            self.held = Some(line);
            return NextLine::Goes;
        }
        let twice = self.plan.iter().any(|what| match what {
            FaultKind::Duplicate(at) => at.place() == event || at.place() == 0,
            _ => false,
        });
        out.extend_from_slice(&line);
        if twice {
            out.extend_from_slice(&line);
        }
        out.extend(self.held.take().into_iter().flatten());
        NextLine::Goes
    }

    fn bookmark(&mut self, line: &[u8], out: &mut Vec<u8>) {
        let text = String::from_utf8_lossy(line);
        // Nothing may overtake an event that only waits for the next one.
        out.extend(self.held.take().into_iter().flatten());
        if !self.plan.contains(&FaultKind::NoBookmarks) || text.contains("initial-events-end") {
            out.extend_from_slice(line);
        }
    }

    /// Writes what is sent before an event.
    fn before(&self, event: u64, out: &mut Vec<u8>) -> NextLine {
        for what in &self.plan {
            match what {
                FaultKind::Insert { at, frame } if at.place() == event => {
                    out.extend_from_slice(frame.as_bytes());
                    out.push(b'\n');
                }
                FaultKind::ExpiredEvent(at) if at.place() == event => {
                    out.extend_from_slice(&error_frame(&ApiError::watch_expired(0, 0)));
                    return NextLine::Ends;
                }
                FaultKind::EndBefore(at) if at.place() == event => return NextLine::Ends,
                _ => {}
            }
        }
        NextLine::Goes
    }
}

/// The type of a frame comes first or last.
fn is_type(line: &[u8], name: &str) -> bool {
    let member = format!("\"type\":\"{name}\"");
    line.starts_with(format!("{{{member}").as_bytes()) || line.ends_with(format!("{member}}}\n").as_bytes())
}

fn is_of_events(what: &FaultKind) -> bool {
    matches!(
        what,
        FaultKind::Insert { .. }
            | FaultKind::ExpiredEvent(_)
            | FaultKind::EndBefore(_)
            | FaultKind::Duplicate(_)
            | FaultKind::Swap(_)
            | FaultKind::Drop(_)
            | FaultKind::NoBookmarks
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apiserver::faults::FaultPoint;

    const STREAM: &str = "{\"type\":\"ADDED\",1}\n{\"type\":\"ADDED\",2}\n{\"type\":\"BOOKMARK\"}\n\
        {\"type\":\"ADDED\",3}\n";

    /// The output for a stream that is cut anywhere: `1`, `2` and `3` for events, `B` for a bookmark.
    fn through(what: &FaultKind) -> (String, NextLine) {
        let mut seen: Option<(String, NextLine)> = None;
        for size in [1, 7, 1000] {
            let mut frames = FrameFaults::new(std::slice::from_ref(what)).unwrap();
            let mut out = Vec::new();
            let mut next = frames.begin(&mut out);
            for part in STREAM.as_bytes().chunks(size) {
                if next == NextLine::Goes {
                    next = frames.take(part, &mut out);
                }
            }
            if next == NextLine::Goes {
                frames.finish(&mut out);
            }
            let text = String::from_utf8(out).unwrap();
            let short = text.lines().map(|line| match line {
                line if line.contains("BOOKMARK") => "B",
                line if line.contains("ERROR") => "E",
                line if line.contains('1') => "1",
                line if line.contains('2') => "2",
                line if line.contains('3') => "3",
                _ => "?",
            });
            let now = (short.collect::<String>(), next);
            assert!(seen.as_ref().is_none_or(|seen| *seen == now), "{seen:?} {now:?}");
            seen = Some(now);
        }
        seen.unwrap()
    }

    #[test]
    fn each_fault_does_what_it_says_however_the_stream_is_cut() {
        let at = FaultPoint::Exactly;
        let insert = |place| FaultKind::Insert { at: at(place), frame: "x".into() };
        for (what, seen, next) in [
            (FaultKind::Duplicate(at(2)), "122B3", NextLine::Goes),
            (FaultKind::Duplicate(at(0)), "1122B33", NextLine::Goes),
            (FaultKind::Swap(at(1)), "21B3", NextLine::Goes),
            (FaultKind::Swap(at(2)), "12B3", NextLine::Goes),
            (FaultKind::Swap(at(3)), "12B3", NextLine::Goes),
            (FaultKind::Drop(at(2)), "1B3", NextLine::Goes),
            (FaultKind::NoBookmarks, "123", NextLine::Goes),
            (insert(0), "?12B3", NextLine::Goes),
            (insert(3), "12B?3", NextLine::Goes),
            (FaultKind::ExpiredEvent(at(2)), "1E", NextLine::Ends),
            (FaultKind::ExpiredEvent(at(0)), "E", NextLine::Ends),
            (FaultKind::EndBefore(at(3)), "12B", NextLine::Ends),
        ] {
            assert_eq!(through(&what), (seen.to_owned(), next), "{what:?}");
        }
    }
}
