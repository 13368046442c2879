//! Sends the recording's requests, and what others did in between, and collects what differs.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use kubewitness_harness::{Simulator, http};
use reqwest::{Method, Response};
use serde_json::Value;

use super::relation::{AnswerDifference, ValueRelations};
use super::script::{self, Write};
use super::transcript::{Transcript, TranscriptStep};

/// A frame that a real server had already sent comes within this.
const FRAME_WITHIN: Duration = Duration::from_secs(10);
/// How long a stream is watched for frames that should not be there.
const QUIET: Duration = Duration::from_millis(300);

pub async fn replay(simulator: &Simulator, transcript: &Transcript) -> Result<Vec<AnswerDifference>> {
    let mut replay = TranscriptReplay {
        simulator,
        client: http(),
        relations: ValueRelations::default(),
        found: Vec::new(),
    };
    replay.prepare().await?;
    for (index, step) in transcript.steps.iter().enumerate() {
        let writes = script::before(transcript, index);
        replay.others(&writes).await?;
        let during = script::during(&transcript.name, index);
        let result = replay.step(index, step, &during).await;
        result.with_context(|| format!("step {index}, {}", step.why))?;
    }
    Ok(replay.found)
}

struct TranscriptReplay<'a> {
    simulator: &'a Simulator,
    client: reqwest::Client,
    relations: ValueRelations,
    found: Vec<AnswerDifference>,
}

impl TranscriptReplay<'_> {
    /// The namespace of the recordings was there before them.
    async fn prepare(&mut self) -> Result<()> {
        let namespace =
            serde_json::json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "rec4"}});
        let (status, answer) =
            self.simulator.request(Method::POST, "/api/v1/namespaces", Some(&namespace)).await?;
        if status != 201 {
            bail!("making the namespace answered {status}: {answer}");
        }
        Ok(())
    }

    /// Writes that the recording does not show, only what came of them.
    async fn others(&mut self, writes: &[Write]) -> Result<()> {
        for write in writes {
            self.other(write).await.with_context(|| format!("{write:?}"))?;
        }
        Ok(())
    }

    async fn other(&mut self, write: &Write) -> Result<()> {
        let (method, path, kind, body, version) = match write {
            Write::Compact(version) => {
                return self.simulator.compact(version.map(|version| self.relations.version(version))).await;
            }
            Write::Post(path, body, version) => (Method::POST, path, "application/json", body, version),
            Write::Merge(path, body, version) => {
                (Method::PATCH, path, "application/merge-patch+json", body, version)
            }
            Write::Json(path, body, version) => {
                (Method::PATCH, path, "application/json-patch+json", body, version)
            }
            Write::Delete(path) => (Method::DELETE, path, "application/json", &Value::Null, &None),
        };
        let mut request = self
            .client
            .request(method, format!("{}{}", self.simulator.url(), self.relations.request_path(path)))
            .bearer_auth(self.simulator.token());
        if !body.is_null() {
            request =
                request.header("content-type", kind).body(self.relations.request_body(body).to_string());
        }
        let response = request.send().await?;
        let (status, text) = (response.status(), response.text().await?);
        if !status.is_success() {
            bail!("answered {status}: {text}");
        }
        if let Some(recorded) = version {
            let answer: Value = serde_json::from_str(&text)?;
            let here = answer["metadata"]["resourceVersion"]
                .as_str()
                .context("an answer without a version")?
                .parse()?;
            if !self.relations.bind_version(*recorded, here) {
                bail!("version {here} can't stand for {recorded}");
            }
        }
        Ok(())
    }

    async fn step(&mut self, index: usize, step: &TranscriptStep, during: &[Write]) -> Result<()> {
        let response = self.send(step).await?;
        let status = response.status().as_u16();
        if status != step.response.status {
            self.differ(format!("{index}.status"), &step.response.status.to_string(), &status.to_string());
        }
        self.headers(index, step, &response);
        if let Some(frames) = &step.response.frames {
            self.others(during).await?;
            return self.frames(index, frames, step.response.closed_by_server, response).await;
        }
        let text = response.text().await?;
        match (&step.response.body, &step.response.text) {
            (Some(body), _) => {
                let here = serde_json::from_str(&text).unwrap_or(Value::String(text));
                self.relations.compare(&format!("{index}.body"), body, &here, &mut self.found);
            }
            (None, Some(recorded)) if *recorded != text => {
                self.differ(format!("{index}.text"), recorded, &text);
            }
            _ => {}
        }
        Ok(())
    }

    async fn send(&self, step: &TranscriptStep) -> Result<Response> {
        let method: Method = step.request.method.parse().context("the method")?;
        let path = self.relations.request_path(&step.request.path);
        let mut request = self.client.request(method, format!("{}{path}", self.simulator.url()));
        for (name, value) in &step.request.headers {
            request = match (name.as_str(), value.as_str()) {
                // The recording shows neither a missing nor a wrong token; the answer says which it was.
                ("Authorization", "<none>") if step.response.status == 401 => request.bearer_auth("wrong"),
                ("Authorization", "<none>") => request,
                ("Authorization", _) => request.bearer_auth(self.simulator.token()),
                _ => request.header(name, value),
            };
        }
        if let Some(body) = &step.request.body {
            request = request.body(match body {
                Value::String(text) => text.clone(),
                other => self.relations.request_body(other).to_string(),
            });
        }
        request.send().await.context("sending the request")
    }

    /// How an answer is cut into chunks is the server's choice, except that a watch has no end.
    fn headers(&mut self, index: usize, step: &TranscriptStep, response: &Response) {
        for (name, recorded) in &step.response.headers {
            if name == "transfer-encoding" && step.response.frames.is_none() {
                continue;
            }
            let here =
                response.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or("(nothing)");
            if here != recorded {
                let (recorded, here) = (recorded.clone(), here.to_owned());
                self.differ(format!("{index}.headers.{name}"), &recorded, &here);
            }
        }
    }

    async fn frames(
        &mut self,
        index: usize,
        frames: &[Value],
        closed: bool,
        response: Response,
    ) -> Result<()> {
        let mut stream = WatchFrames { response, buffer: Vec::new() };
        for (number, recorded) in frames.iter().enumerate() {
            let Some(here) = stream.next(FRAME_WITHIN).await? else {
                self.differ(format!("{index}.frames[{number}]"), &recorded.to_string(), "(nothing)");
                return Ok(());
            };
            self.relations.compare(&format!("{index}.frames[{number}]"), recorded, &here, &mut self.found);
        }
        let wait = if closed { FRAME_WITHIN } else { QUIET };
        match (stream.more(wait).await?, closed) {
            (NextFrame::Frame(extra), _) => {
                self.differ(format!("{index}.frames[{}]", frames.len()), "(nothing)", &extra.to_string());
            }
            (NextFrame::End, false) => self.differ(format!("{index}.closed_by_server"), "false", "true"),
            (NextFrame::Nothing, true) => self.differ(format!("{index}.closed_by_server"), "true", "false"),
            (NextFrame::End, true) | (NextFrame::Nothing, false) => {}
        }
        Ok(())
    }

    fn differ(&mut self, path: String, recorded: &str, here: &str) {
        self.found.push(AnswerDifference { path, recorded: recorded.to_owned(), here: here.to_owned() });
    }
}

/// A watch's lines.
struct WatchFrames {
    response: Response,
    buffer: Vec<u8>,
}

enum NextFrame {
    Frame(Value),
    End,
    Nothing,
}

impl WatchFrames {
    /// `None` where none comes in time or the stream has ended.
    async fn next(&mut self, within: Duration) -> Result<Option<Value>> {
        Ok(match self.more(within).await? {
            NextFrame::Frame(frame) => Some(frame),
            NextFrame::End | NextFrame::Nothing => None,
        })
    }

    async fn more(&mut self, within: Duration) -> Result<NextFrame> {
        match tokio::time::timeout(within, self.line()).await {
            Ok(line) => match line? {
                Some(line) => Ok(NextFrame::Frame(serde_json::from_slice(&line).context("a frame")?)),
                None => Ok(NextFrame::End),
            },
            Err(_) => Ok(NextFrame::Nothing),
        }
    }

    async fn line(&mut self) -> Result<Option<Vec<u8>>> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let rest = self.buffer.split_off(end + 1);
                return Ok(Some(std::mem::replace(&mut self.buffer, rest)));
            }
            match self.response.chunk().await.context("reading the stream")? {
                Some(chunk) => self.buffer.extend_from_slice(&chunk),
                None => return Ok(None),
            }
        }
    }
}
