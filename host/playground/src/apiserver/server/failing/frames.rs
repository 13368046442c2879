//! Applies faults of single events: the lines of a watch go in one by one, and come out as a faulty server
//! would send them.

use crate::apiserver::faults::What;
use crate::apiserver::objects::watch::error_frame;
use crate::apiserver::wire::error::ApiError;

/// What follows a line.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    Goes,
    Ends,
}

/// The faults of one watch, and its progress.
pub struct Frames {
    plan: Vec<What>,
    /// The number of events that came in.
    events: u64,
    /// An event that waits for the next one.
    held: Option<Vec<u8>>,
    /// The beginning of a line.
    rest: Vec<u8>,
}

impl Frames {
    /// Returns `None` if no fault concerns events.
    pub fn new(faults: &[What]) -> Option<Self> {
        let plan: Vec<What> = faults.iter().filter(|what| is_of_events(what)).cloned().collect();
        (!plan.is_empty()).then(|| Frames { plan, events: 0, held: None, rest: Vec::new() })
    }

    /// What is sent before everything else.
    pub fn begin(&mut self, out: &mut Vec<u8>) -> Next {
        self.before(0, out)
    }

    /// Takes a part of the stream.
    pub fn take(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Next {
        self.rest.extend_from_slice(bytes);
        while let Some(end) = self.rest.iter().position(|b| *b == b'\n') {
            let line: Vec<u8> = self.rest.drain(..=end).collect();
            if self.line(line, out) == Next::Ends {
                return Next::Ends;
            }
        }
        Next::Goes
    }

    /// What is left when the stream has ended.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        out.extend(self.held.take().into_iter().flatten());
        out.append(&mut self.rest);
    }

    fn line(&mut self, line: Vec<u8>, out: &mut Vec<u8>) -> Next {
        if is_type(&line, "BOOKMARK") {
            self.bookmark(&line, out);
            return Next::Goes;
        }
        if is_type(&line, "ERROR") {
            out.extend(self.held.take().into_iter().flatten());
            out.extend_from_slice(&line);
            return Next::Goes;
        }
        self.events += 1;
        let event = self.events;
        if self.before(event, out) == Next::Ends {
            return Next::Ends;
        }
        let hits =
            |wanted: fn(&What) -> Option<u64>| self.plan.iter().filter_map(wanted).any(|at| at == event);
        if hits(|what| if let What::Drop(at) = what { Some(at.place()) } else { None }) {
            return Next::Goes;
        }
        if hits(|what| if let What::Swap(at) = what { Some(at.place()) } else { None }) {
            self.held = Some(line);
            return Next::Goes;
        }
        let twice = self.plan.iter().any(|what| match what {
            What::Duplicate(at) => at.place() == event || at.place() == 0,
            _ => false,
        });
        out.extend_from_slice(&line);
        if twice {
            out.extend_from_slice(&line);
        }
        out.extend(self.held.take().into_iter().flatten());
        Next::Goes
    }

    fn bookmark(&mut self, line: &[u8], out: &mut Vec<u8>) {
        let text = String::from_utf8_lossy(line);
        // Nothing may overtake an event that only waits for the next one.
        out.extend(self.held.take().into_iter().flatten());
        if !self.plan.contains(&What::NoBookmarks) || text.contains("initial-events-end") {
            out.extend_from_slice(line);
        }
    }

    /// What is sent before an event.
    fn before(&self, event: u64, out: &mut Vec<u8>) -> Next {
        for what in &self.plan {
            match what {
                What::Insert { at, frame } if at.place() == event => {
                    out.extend_from_slice(frame.as_bytes());
                    out.push(b'\n');
                }
                What::ExpiredEvent(at) if at.place() == event => {
                    out.extend_from_slice(&error_frame(&ApiError::watch_expired(0, 0)));
                    return Next::Ends;
                }
                What::EndBefore(at) if at.place() == event => return Next::Ends,
                _ => {}
            }
        }
        Next::Goes
    }
}

/// The type of a frame comes first or last.
fn is_type(line: &[u8], name: &str) -> bool {
    let member = format!("\"type\":\"{name}\"");
    line.starts_with(format!("{{{member}").as_bytes()) || line.ends_with(format!("{member}}}\n").as_bytes())
}

fn is_of_events(what: &What) -> bool {
    matches!(
        what,
        What::Insert { .. }
            | What::ExpiredEvent(_)
            | What::EndBefore(_)
            | What::Duplicate(_)
            | What::Swap(_)
            | What::Drop(_)
            | What::NoBookmarks
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apiserver::faults::At;

    const STREAM: &str = "{\"type\":\"ADDED\",1}\n{\"type\":\"ADDED\",2}\n{\"type\":\"BOOKMARK\"}\n\
        {\"type\":\"ADDED\",3}\n";

    /// The output for a stream that is cut anywhere: `1`, `2` and `3` for events, `B` for a bookmark.
    fn through(what: &What) -> (String, Next) {
        let mut seen: Option<(String, Next)> = None;
        for size in [1, 7, 1000] {
            let mut frames = Frames::new(std::slice::from_ref(what)).unwrap();
            let mut out = Vec::new();
            let mut next = frames.begin(&mut out);
            for part in STREAM.as_bytes().chunks(size) {
                if next == Next::Goes {
                    next = frames.take(part, &mut out);
                }
            }
            if next == Next::Goes {
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
        let at = At::Exactly;
        let insert = |place| What::Insert { at: at(place), frame: "x".into() };
        for (what, seen, next) in [
            (What::Duplicate(at(2)), "122B3", Next::Goes),
            (What::Duplicate(at(0)), "1122B33", Next::Goes),
            (What::Swap(at(1)), "21B3", Next::Goes),
            (What::Swap(at(2)), "12B3", Next::Goes),
            (What::Swap(at(3)), "12B3", Next::Goes),
            (What::Drop(at(2)), "1B3", Next::Goes),
            (What::NoBookmarks, "123", Next::Goes),
            (insert(0), "?12B3", Next::Goes),
            (insert(3), "12B?3", Next::Goes),
            (What::ExpiredEvent(at(2)), "1E", Next::Ends),
            (What::ExpiredEvent(at(0)), "E", Next::Ends),
            (What::EndBefore(at(3)), "12B", Next::Ends),
        ] {
            assert_eq!(through(&what), (seen.to_owned(), next), "{what:?}");
        }
    }
}
