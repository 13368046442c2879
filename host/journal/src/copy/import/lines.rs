//! Reads the lines of an export. Each line is bounded and numbered, and its checksum must match.

use std::io::{BufRead, Read as _};

use bytes::Bytes;
use kubewitness_core::State;
use kubewitness_core::document::{checksum, checksum_behind};
use serde::Deserialize;

use super::fault::{AGAIN, ImportError, OTHER};
use crate::copy::format::ExportEnd;

/// The longest line: the largest document with every byte escaped, and the fields around it.
const LINE: u64 = 6 * kubewitness_core::limits::FRAME_BYTES as u64 + (1 << 20);

const NEITHER: &str = "it is neither a state nor the end of the export";
const MOVED: &str = "it does not follow the line before: lines were moved, repeated or left out here, or come from \
                     another export";

#[derive(Deserialize)]
struct ImportLine {
    /// The checksum of all lines before it.
    after: Option<u32>,
    state: Option<State>,
    end: Option<ExportEnd>,
    document: Option<String>,
    document_hex: Option<String>,
}

pub(super) enum ParsedLine {
    State(Box<State>, Bytes),
    End(ExportEnd),
}

/// Reads and counts lines. Its errors name the line.
pub(super) struct ImportLines<'a> {
    input: &'a mut (dyn BufRead + Send),
    number: u64,
    buffer: Vec<u8>,
    most: u64,
    /// The checksum of all lines before the one that was read last, and the checksum including that line.
    before: u32,
    through: u32,
    /// Each line must have the checksum of the lines before it.
    pub chained: bool,
}

impl<'a> ImportLines<'a> {
    pub fn of(input: &'a mut (dyn BufRead + Send)) -> Self {
        Self { input, number: 0, buffer: Vec::new(), most: LINE, before: 0, through: 0, chained: false }
    }

    /// The number of the last line that was read; the first line has 1.
    pub fn line_number(&self) -> u64 {
        self.number
    }

    pub fn error_at_line(&self, reason: impl Into<String>, hint: &'static str) -> ImportError {
        ImportError::Line { line: self.number, reason: reason.into(), hint }
    }

    /// `None` at the end.
    pub fn next(&mut self) -> Result<Option<&str>, ImportError> {
        self.number += 1;
        self.buffer.clear();
        let mut limited = (&mut *self.input).take(self.most);
        let read = limited.read_until(b'\n', &mut self.buffer);
        let read = read.map_err(|error| ImportError::Read { line: self.number, error })?;
        if read == 0 {
            return Ok(None);
        }
        (self.before, self.through) = (self.through, checksum_behind(self.through, &self.buffer));
        if self.buffer.pop_if(|byte| *byte == b'\n').is_none() {
            let reason = match read as u64 == self.most {
                true => format!("it is longer than any line of an export ({} bytes)", self.most),
                false => "it has no line break at its end".into(),
            };
            return Err(self.error_at_line(reason, self.hint_for_error()));
        }
        match std::str::from_utf8(&self.buffer) {
            Ok(line) => Ok(Some(line)),
            Err(_) => Err(self.error_at_line("it is not UTF-8", self.hint_for_error())),
        }
    }

    /// No import has begun before the first line is read.
    fn hint_for_error(&self) -> &'static str {
        if self.number == 1 { OTHER } else { AGAIN }
    }

    /// The next line after the first.
    pub fn next_parsed_line(&mut self) -> Result<ParsedLine, ImportError> {
        let Some(line) = self.next()? else {
            return Err(self.error_at_line("the file ends here, before the end of the export", AGAIN));
        };
        let parsed = parse(line);
        let (after, parsed) = parsed.map_err(|reason| self.error_at_line(reason, AGAIN))?;
        match after {
            Some(after) if after != self.before => Err(self.error_at_line(MOVED, AGAIN)),
            None if self.chained => Err(self.error_at_line("it does not say what it stands after", AGAIN)),
            _ => Ok(parsed),
        }
    }
}

/// The checksum of the lines before this one, if the line has it, and the content of the line.
fn parse(line: &str) -> Result<(Option<u32>, ParsedLine), String> {
    let split = line.strip_prefix("{\"sum\":").and_then(|rest| rest.split_once(','));
    let (sum, rest) = split.ok_or(NEITHER)?;
    if sum.parse() != Ok(checksum(rest.as_bytes())) {
        return Err("its checksum does not match: it was changed after the export".into());
    }
    let parsed = serde_json::from_str(&format!("{{{rest}"));
    let line: ImportLine = parsed.map_err(|error| format!("it does not decode: {error}"))?;
    let state = match (line.state, line.end) {
        (Some(state), None) => state,
        (None, Some(end)) => return Ok((line.after, ParsedLine::End(end))),
        _ => return Err(NEITHER.into()),
    };
    let document = match (line.document, line.document_hex) {
        (Some(document), _) => document.into_bytes(),
        (None, Some(hex)) => hex::decode(&hex).map_err(|_| "its document does not decode")?,
        (None, None) => return Err("it has no document".into()),
    };
    Ok((line.after, ParsedLine::State(Box::new(state), document.into())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_without_end_is_refused_before_it_fills_the_memory() {
        let mut endless = std::io::BufReader::new(std::io::repeat(b'x'));
        let mut lines = ImportLines { most: 64 << 10, ..ImportLines::of(&mut endless) };
        let refused = lines.next().unwrap_err().to_string();
        assert!(
            refused.starts_with("line 1: it is longer than any line of an export (65536 bytes)"),
            "{refused}"
        );
        assert!(lines.buffer.len() <= 64 << 10);
    }
}
