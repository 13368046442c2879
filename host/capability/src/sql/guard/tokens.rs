//! A rendered statement as words, quotes, placeholders and symbols. Tokens that a parser can write but a
//! database might read differently (a comment, a string with a prefix, a control character) are refused.

use kubewitness_core::ports::{GrantError, SqlDialect};

use super::{MAX_BINDS, invalid_statement};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenKind {
    Word,
    /// A quoted identifier or a string: SQLite may read one as the other.
    Quoted,
    Number,
    /// `?`, or `?7`.
    Parameter(Option<usize>),
    Symbol(u8),
}

#[derive(Clone, Copy, Debug)]
pub struct SqlToken<'a> {
    pub kind: TokenKind,
    pub text: &'a str,
    pub at: usize,
}

impl<'a> SqlToken<'a> {
    pub fn is_word(&self, word: &str) -> bool {
        self.kind == TokenKind::Word && self.text.eq_ignore_ascii_case(word)
    }

    pub fn is_any(&self, words: &[&str]) -> bool {
        words.iter().any(|word| self.is_word(word))
    }

    pub fn is_symbol(&self, symbol: u8) -> bool {
        self.kind == TokenKind::Symbol(symbol)
    }

    /// The name that this token holds; empty if it can't be a name.
    pub fn name(&self) -> &'a str {
        match self.kind {
            TokenKind::Quoted => &self.text[1..self.text.len() - 1],
            TokenKind::Word => self.text,
            TokenKind::Number | TokenKind::Parameter(_) | TokenKind::Symbol(_) => "",
        }
    }
}

pub fn tokenize_statement(text: &str, dialect: SqlDialect) -> Result<Vec<SqlToken<'_>>, GrantError> {
    let bytes = text.as_bytes();
    let mut tokens: Vec<SqlToken<'_>> = Vec::new();
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let (kind, end) = match byte {
            b' ' | b'\t' | b'\n' | b'\r' => {
                at += 1;
                continue;
            }
            // A rendered statement has no comments.
            b'-' if bytes.get(at + 1) == Some(&b'-') => {
                return invalid_statement("a statement has no comments");
            }
            b'/' if bytes.get(at + 1) == Some(&b'*') => {
                return invalid_statement("a statement has no comments");
            }
            b'`' if dialect == SqlDialect::Postgres => return invalid_statement("a name is quoted with \""),
            b'\'' | b'"' | b'`' => {
                check_prefix(tokens.last(), at, dialect)?;
                (TokenKind::Quoted, end_of_quoted(bytes, at)?)
            }
            b'[' if dialect == SqlDialect::Sqlite => {
                let Some(found) = text[at..].find(']') else {
                    return invalid_statement("a quoted name does not end");
                };
                (TokenKind::Quoted, at + found + 1)
            }
            b'?' => {
                let end = run(bytes, at + 1, |b| b.is_ascii_digit());
                (parse_parameter(&text[at + 1..end])?, end)
            }
            b':' if dialect == SqlDialect::Postgres && bytes.get(at + 1) == Some(&b':') => {
                (TokenKind::Symbol(b':'), at + 2)
            }
            b':' | b'@' | b'$' | b'#' => return invalid_statement("parameters are written `?`"),
            b'\\' if dialect != SqlDialect::Sqlite => {
                return invalid_statement("a backslash stands in strings alone");
            }
            b'0'..=b'9' => {
                (TokenKind::Number, run(bytes, at, |b| b.is_ascii_alphanumeric() || b == b'_' || b == b'.'))
            }
            _ if is_word(byte) => {
                (TokenKind::Word, run(bytes, at, |b| is_word(b) || b.is_ascii_digit() || b == b'$'))
            }
            control if control.is_ascii_control() => {
                return invalid_statement("a statement has no control characters");
            }
            symbol => (TokenKind::Symbol(symbol), at + 1),
        };
        tokens.push(SqlToken { kind, text: &text[at..end], at });
        at = end;
    }
    Ok(tokens)
}

/// Refuses prefixed strings: `E'…'` and `U&"…"` have escapes that would end a quote elsewhere.
fn check_prefix(before: Option<&SqlToken<'_>>, at: usize, dialect: SqlDialect) -> Result<(), GrantError> {
    let Some(before) = before.filter(|token| token.at + token.text.len() == at) else { return Ok(()) };
    let prefixed = matches!(before.kind, TokenKind::Word | TokenKind::Symbol(b'&')) && !before.is_word("X");
    if dialect != SqlDialect::Sqlite && prefixed {
        return invalid_statement("strings have no prefix but X: escapes are not read");
    }
    Ok(())
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || byte == b'_' || byte >= 0x80
}

fn run(bytes: &[u8], from: usize, belongs: impl Fn(u8) -> bool) -> usize {
    bytes[from..].iter().position(|b| !belongs(*b)).map_or(bytes.len(), |found| from + found)
}

/// The position after the closing quote; a doubled quote stands for itself.
fn end_of_quoted(bytes: &[u8], start: usize) -> Result<usize, GrantError> {
    let quote = bytes[start];
    let mut at = start + 1;
    while at < bytes.len() {
        match (bytes[at] == quote, bytes.get(at + 1) == Some(&quote)) {
            (true, true) => at += 2,
            (true, false) => return Ok(at + 1),
            (false, _) => at += 1,
        }
    }
    invalid_statement("a quote does not end")
}

fn parse_parameter(digits: &str) -> Result<TokenKind, GrantError> {
    if digits.is_empty() {
        return Ok(TokenKind::Parameter(None));
    }
    match digits.parse() {
        Ok(number) if number > 0 && number <= MAX_BINDS => Ok(TokenKind::Parameter(Some(number))),
        _ => invalid_statement(format!("`?{digits}` is not a parameter")),
    }
}
