//! The answer to a client for which no place is free.

use std::future::Future;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const ANSWER: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\n\
    content-type: application/problem+json\r\n\
    content-length: 346\r\n\
    retry-after: 2\r\n\
    cache-control: no-store\r\n\
    connection: close\r\n\r\n\
    {\"type\":\"/api#unavailable\",\"title\":\"This can't be answered now\",\"status\":503,\
    \"detail\":\"There are too many connections.\",\
    \"hint\":\"Try again in a moment, or close others of this machine.\",\"code\":\"unavailable\",\
    \"error\":{\"code\":\"unavailable\",\"message\":\"There are too many connections.\",\
    \"hint\":\"Try again in a moment, or close others of this machine.\"}}";
/// A client sends its request with its connection. Closing before it was read would discard the answer.
const LINGER: Duration = Duration::from_secs(1);
const MOST_READ: u64 = 16 * 1024;

/// Sends the answer at once, into an empty buffer. The returned future waits a moment for the client to read
/// it; there is none for the last spare place.
pub(super) fn send_refusal(mut stream: TcpStream, is_last: bool) -> Option<impl Future<Output = ()>> {
    // A client that is gone needs no answer.
    let sent = stream.try_write(ANSWER).is_ok_and(|sent| sent == ANSWER.len());
    if !sent || is_last {
        return None;
    }
    Some(async move {
        let lingering = async {
            stream.shutdown().await?;
            tokio::io::copy(&mut stream.take(MOST_READ), &mut tokio::io::sink()).await
        };
        if let Ok(Err(error)) = tokio::time::timeout(LINGER, lingering).await {
            tracing::trace!(%error, "a refused client broke off");
        }
    })
}

#[cfg(test)]
mod tests {
    use crate::answer::codes::UNAVAILABLE;

    #[test]
    fn the_answer_is_as_long_as_it_says() {
        let text = std::str::from_utf8(super::ANSWER).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
        assert_eq!(length, body.len().to_string());
        let body: serde_json::Value = serde_json::from_str(body).unwrap();
        assert_eq!((&body["error"]["code"], &body["code"]), (&"unavailable".into(), &"unavailable".into()));
        assert_eq!(body["title"], UNAVAILABLE.title);
    }
}
