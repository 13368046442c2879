//! The text of a long list, written as it is sent. Each row is dropped once it is text, so that an answer is
//! in memory once and not twice.

use std::io;

use axum::body::{Body, Bytes};
use futures::stream;
use serde::Serialize;

/// Answers with more rows are written as they are sent. They have no ETag, because one is computed from the
/// whole text.
pub(crate) const LONG: usize = 1000;
/// Rows that become text at once.
const BLOCK: usize = 64;

/// A JSON list of the rows.
pub(crate) fn list_body<T: Serialize + Send + 'static>(rows: Vec<T>) -> Body {
    let rows = ListRows { rows: rows.into_iter(), is_first: true };
    Body::from_stream(stream::unfold(Some(rows), |rows| async {
        let mut rows = rows?;
        let block: Vec<T> = rows.rows.by_ref().take(BLOCK).collect();
        let mut text = if rows.is_first { b"[".to_vec() } else { Vec::new() };
        let written = append_rows(&mut text, &block, std::mem::take(&mut rows.is_first));
        let rest = if rows.rows.len() > 0 { Some(rows) } else { None };
        if rest.is_none() {
            text.push(b']');
        }
        Some((written.map(|()| Bytes::from(text)), rest))
    }))
}

struct ListRows<T> {
    rows: std::vec::IntoIter<T>,
    is_first: bool,
}

/// Appends rows to the text of a list, with a comma before each but the list's first.
pub(crate) fn append_rows<T: Serialize>(text: &mut Vec<u8>, rows: &[T], is_first: bool) -> io::Result<()> {
    for (index, row) in rows.iter().enumerate() {
        if index > 0 || !is_first {
            text.push(b',');
        }
        serde_json::to_writer(&mut *text, row)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    #[tokio::test]
    async fn a_list_that_is_written_in_blocks_is_the_list_that_it_was() {
        for count in [0, 1, BLOCK, BLOCK + 1, 3 * BLOCK] {
            let rows: Vec<_> = (0..count).map(|row| format!("row {row}")).collect();
            let text = list_body(rows.clone()).collect().await.unwrap().to_bytes();
            assert_eq!(serde_json::from_slice::<Vec<String>>(&text).unwrap(), rows);
        }
    }

    #[tokio::test]
    async fn rows_are_given_up_as_they_are_written() {
        let row = std::sync::Arc::<str>::from("row");
        let mut body = list_body(vec![row.clone(); 3 * BLOCK]);
        body.frame().await.unwrap().unwrap();
        assert_eq!(std::sync::Arc::strong_count(&row), 1 + 2 * BLOCK);
        drop(body);
        assert_eq!(std::sync::Arc::strong_count(&row), 1);
    }
}
