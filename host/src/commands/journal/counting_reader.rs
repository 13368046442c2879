//! A reader that counts the bytes read from it.

use std::io::{self, BufRead, Read};
use std::sync::atomic::{AtomicU64, Ordering};

pub struct CountingReader<'a> {
    pub input: &'a mut (dyn BufRead + Send),
    pub taken: &'a AtomicU64,
}

impl Read for CountingReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.input.read(buffer)?;
        self.taken.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

impl BufRead for CountingReader<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.input.fill_buf()
    }

    fn consume(&mut self, amount: usize) {
        self.taken.fetch_add(amount as u64, Ordering::Relaxed);
        self.input.consume(amount);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_count_once_however_they_are_taken() {
        let (mut input, taken) = (&b"one\ntwo\nthree"[..], AtomicU64::new(0));
        let mut counted = CountingReader { input: &mut input, taken: &taken };
        let mut line = String::new();
        assert_eq!(counted.read_line(&mut line).unwrap(), 4);
        assert_eq!(taken.load(Ordering::Relaxed), 4);
        counted.read_to_string(&mut line).unwrap();
        assert_eq!((line.as_str(), taken.load(Ordering::Relaxed)), ("one\ntwo\nthree", 13));
    }
}
