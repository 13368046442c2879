//! The API against its own description: schemathesis makes requests of it, right ones and wrong ones, and compares each
//! answer with what the description says of it.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use kubewitness_harness::{
    ChildProcess, Scratch, free_port, http, in_scratch, in_time, seed, services_folder, skip, until,
};
use serde_json::Value;
use tokio::process::Command;

use crate::portal::browser::{WITHIN, playground, token_of};

/// Each answer has a code, a form and headers that the description has, and none is the server's fault. Whether a request
/// is taken can't be asked for: no description says which objects there are, and an empty parameter counts as left out.
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,\
    response_headers_conformance,unsupported_method,allow_header_conformance";
/// Random ones of each operation.
const EXAMPLES: &str = "8";
/// Random requests, and those at the edges of what is allowed.
const PHASES: [&str; 2] = ["examples,fuzzing", "coverage"];
/// Far more than the requests of one person take: about ten seconds.
const RUN: Duration = Duration::from_secs(300);
/// schemathesis reads an answer to its end, and this one has none: [`stream`] compares it with its description.
const STREAM: &str = "/api/v1/events";

#[tokio::test]
async fn the_api_answers_as_its_description_says_with_and_without_rights() {
    let tool = services_folder().map(|folder| folder.join("schemathesis/bin/st"));
    let Some(tool) = tool.ok().filter(|tool| tool.is_file()) else {
        let why = "schemathesis can't be had from Python's registry";
        return skip("contract::the_api_answers_as_its_description_says", why);
    };
    in_scratch("contract", async |scratch| {
        let port = free_port()?;
        let mut playground = playground(scratch, port, &["--auth", "kubernetes"])?;
        let result = compare(&tool, scratch, &mut playground, &format!("http://127.0.0.1:{port}")).await;
        let result = result.with_context(|| playground.say());
        // Plugins may have been paused, so how it ends tells nothing.
        playground.terminate(WITHIN).await?;
        result
    })
    .await;
}

async fn compare(tool: &Path, scratch: &Scratch, playground: &mut ChildProcess, url: &str) -> Result<()> {
    let mut tokens = Vec::new();
    for person in ["linus", "ada"] {
        tokens.push((person, token_of(playground, person).await?));
    }
    let token = &tokens[0].1;
    // Some objects, so that answers are not empty.
    until(WITHIN, "jobs", async || {
        let asked = http().get(format!("{url}/api/v1/objects?kind=Job")).bearer_auth(token).send().await;
        let Ok(answer) = asked.and_then(reqwest::Response::error_for_status) else { return Ok(None) };
        Ok((answer.json::<Vec<Value>>().await?.len() > 5).then_some(()))
    })
    .await?;
    let description = http().get(format!("{url}/api/v1/openapi.json")).bearer_auth(token).send().await?;
    let file = scratch.path().join("openapi.json");
    std::fs::write(&file, description.error_for_status()?.bytes().await?)?;
    let described: Value = serde_json::from_slice(&std::fs::read(&file)?)?;
    stream(&described, url, token).await?;
    // Who has no token is refused whatever is asked, so one request of each operation tells all.
    let api = DescribedApi { tool, scratch, file: &file, url };
    api.send_plan(&RequestPlan {
        person: "nobody",
        token: None,
        phases: "fuzzing",
        examples: "1",
        least: 20,
    })
    .await?;
    // What is at the edges of the allowed is asked by one of the two, and the seed chooses by whom.
    let turn = (seed() % 2) as usize;
    for ((person, token), phases) in tokens.iter().zip([PHASES[turn], PHASES[1 - turn]]) {
        let (token, examples) = (Some(&**token), EXAMPLES);
        api.send_plan(&RequestPlan { person, token, phases, examples, least: 100 }).await?;
    }
    Ok(())
}

/// Right and wrong requests for the stream: status, media type and the events' data are those that are described.
async fn stream(described: &Value, url: &str, token: &str) -> Result<()> {
    let of_it = &described["paths"][STREAM]["get"]["responses"];
    let requests = [
        ("", "", 200),
        ("?after=0", "", 200),
        ("", "1", 200),
        ("?after=-1", "", 400),
        ("?after=x", "", 400),
        ("?after=1&after=2", "", 400),
        ("?other=1", "", 400),
        ("", "x", 400),
    ];
    for (query, last, wanted) in requests {
        let mut request = http().get(format!("{url}{STREAM}{query}")).bearer_auth(token);
        if !last.is_empty() {
            request = request.header("Last-Event-ID", last);
        }
        let answer = request.send().await?;
        let at = format!("{STREAM}{query} with {last:?}");
        ensure!(answer.status() == wanted, "{at} answered {}", answer.status());
        let described = match &of_it[wanted.to_string()]["$ref"] {
            Value::String(place) => {
                described.pointer(place.trim_start_matches('#')).context("a reference")?
            }
            _ => &of_it[wanted.to_string()],
        };
        let media = answer.headers()["content-type"].to_str()?.to_owned();
        ensure!(described["content"][&media].is_object(), "{at} is {media}, and described as {described}");
    }
    let nobody = http().get(format!("{url}{STREAM}")).send().await?;
    ensure!(
        nobody.status() == 401 && described["paths"][STREAM]["get"]["responses"]["401"].is_object(),
        "{nobody:?}"
    );
    first_state(described, url, token).await
}

/// The data of an event `state` has every field that a state must have.
async fn first_state(described: &Value, url: &str, token: &str) -> Result<()> {
    let mut answer = http().get(format!("{url}{STREAM}?after=0")).bearer_auth(token).send().await?;
    let mut text = String::new();
    let data = until(WITHIN, "a state of the stream", async || {
        let chunk = answer.chunk().await?.context("the stream ended")?;
        text.push_str(&String::from_utf8_lossy(&chunk));
        let whole = text.rsplit_once("\n\n").map_or("", |(whole, _)| whole);
        let event = whole.split("\n\n").find(|event| event.contains("event: state"));
        Ok(event
            .and_then(|event| event.lines().find_map(|line| line.strip_prefix("data: ")))
            .map(str::to_owned))
    })
    .await?;
    let state: Value = serde_json::from_str(&data)?;
    let required = described["components"]["schemas"]["State"]["required"].as_array().context("a schema")?;
    for field in required.iter().filter_map(Value::as_str) {
        ensure!(!state[field].is_null(), "{field} is missing: {state}");
    }
    Ok(())
}

struct DescribedApi<'a> {
    tool: &'a Path,
    scratch: &'a Scratch,
    /// The description.
    file: &'a Path,
    url: &'a str,
}

struct RequestPlan<'a> {
    person: &'a str,
    token: Option<&'a str>,
    phases: &'a str,
    examples: &'a str,
    /// Requests that were never sent would pass, too.
    least: u32,
}

impl DescribedApi<'_> {
    /// Sends the requests in the name of a person, and fails with what schemathesis found.
    async fn send_plan(&self, plan: &RequestPlan<'_>) -> Result<()> {
        let RequestPlan { person, token, phases, examples, least } = *plan;
        let mut command = Command::new(self.tool);
        command.arg("run").arg(self.file).args([
            "--url",
            self.url,
            "--exclude-path",
            STREAM,
            "--checks",
            CHECKS,
        ]);
        command.args(["--phases", phases, "--max-examples", examples, "--workers", "1"]);
        command.args(["--seed", &seed().to_string(), "--continue-on-failure", "--no-color"]);
        command.args(["--generation-database", "none", "--request-timeout", "30"]);
        if let Some(token) = token {
            command.args(["--header", &format!("Authorization: Bearer {token}")]);
        }
        command.current_dir(self.scratch.path()).stdin(Stdio::null()).kill_on_drop(true);
        let Some(output) = in_time(RUN, command.output()).await else {
            bail!("schemathesis has not come to its end as {person} within {RUN:?}");
        };
        let output = output.context("starting schemathesis")?;
        let (told, fault) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        ensure!(output.status.success(), "as {person}:\n{told}{fault}");
        let sent =
            told.lines().find_map(|line| line.trim().split_once(" generated, ")?.0.parse::<u32>().ok());
        ensure!(sent >= Some(least), "as {person} too few requests were sent: {sent:?}\n{told}");
        Ok(())
    }
}
