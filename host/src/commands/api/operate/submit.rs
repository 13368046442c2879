//! `kubewitness submit`: makes a Job from a template through the API, as the portal's form does.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use kubewitness_core::config::templates::ParameterSpec;
use kubewitness_core::views::{SubmitRequest, SubmitView, TemplateView};
use ring::rand::{SecureRandom, SystemRandom};
use serde_json::Value;

use super::super::client::{ApiClient, RefusedRequest};
use super::super::live;
use super::super::object_name::namespace_or_context;
use super::dead_letters::login_name;
use crate::cli::{GetOutput, SubmitArgs, WaitArgs};
use crate::commands::print::{self, TextTable, clean_line};
use crate::commands::{CommandEnd, CommandResult, UsageError};

pub async fn run_submit(args: SubmitArgs) -> CommandResult {
    let client = ApiClient::reach_controller(&args.reach).await?;
    if args.list {
        return list(&client, args.template.as_deref(), args.output).await;
    }
    let key = match &args.key {
        Some(key) => key.clone(),
        None => random_key()?,
    };
    let namespace = namespace_or_context(args.namespace.as_deref(), &args.reach).await?;
    let request = submit_request(&args, namespace)?;
    let sent = client.post_with_key("api/v1/jobs", &key, &request).await;
    let view: SubmitView = sent.map_err(|error| explain_refusal(error, args.dry_run, &key))?;
    match args.output.shape() {
        Some(output) => print::print_value(output, &view, text)?,
        None => print::text(&format!("job.batch/{}\n", clean_line(&view.name)))?,
    }
    if !args.watch {
        return Ok(CommandEnd::Fine);
    }
    let SubmitArgs { timeout, reach, .. } = args;
    let object = vec![format!("job/{}", view.name)];
    live::wait_for_new(WaitArgs { object, namespace: Some(view.namespace), timeout, reach }).await
}

/// A refused request has made nothing, and the refusal says what helps.
fn explain_refusal(error: anyhow::Error, dry_run: bool, key: &str) -> anyhow::Error {
    let is_refused = error.is::<RefusedRequest>() || error.is::<UsageError>();
    error.context(match (dry_run, is_refused) {
        (true, _) => "the Job was not checked".to_owned(),
        (false, true) => "the submission did not succeed".to_owned(),
        (false, false) => {
            format!("the submission did not succeed (to repeat it safely, add `--key {key}`)")
        }
    })
}

fn submit_request(args: &SubmitArgs, namespace: String) -> Result<SubmitRequest> {
    let mut parameters = BTreeMap::new();
    for (name, value) in &args.parameters {
        if parameters.insert(name.clone(), Value::from(value.as_str())).is_some() {
            return Err(UsageError::error(format!("the parameter `{name}` is given twice: give it once")));
        }
    }
    Ok(SubmitRequest {
        template: args.template.clone().unwrap_or_default(),
        namespace,
        parameters,
        channel: "cli".into(),
        who: args.who.clone().unwrap_or_else(login_name),
        dry_run: args.dry_run,
    })
}

fn random_key() -> Result<String> {
    let mut bytes = [0; 16];
    SystemRandom::new().fill(&mut bytes).ok().context("no random bytes for the key of the submission")?;
    Ok(hex::encode(bytes))
}

fn text(view: &SubmitView) -> String {
    let (name, namespace) = (clean_line(&view.name), clean_line(&view.namespace));
    match (view.dry_run, view.created) {
        (true, _) => {
            format!("the API server would accept job/{name} in {namespace}; nothing was created\n")
        }
        (false, true) => format!("job/{name} in {namespace} is created\n"),
        (false, false) => {
            format!("job/{name} in {namespace} was created by an earlier request with this key\n")
        }
    }
}

async fn list(client: &ApiClient, only: Option<&str>, output: GetOutput) -> CommandResult {
    let none: [(&str, &str); 0] = [];
    let mut templates: Vec<TemplateView> = client.get("api/v1/templates", &none).await?;
    let known = templates.iter().map(|template| template.name.clone()).collect::<Vec<_>>().join(", ");
    templates.retain(|template| only.is_none_or(|only| template.name == only));
    if let Some(only) = only.filter(|_| templates.is_empty()) {
        return Err(UsageError::error(format!("there is no template `{only}`; there is {known}")));
    }
    match output.shape() {
        Some(output) => print::print_value(output, &templates, |templates| table(templates))?,
        None => {
            let names = templates.iter().map(|template| format!("{}\n", clean_line(&template.name)));
            print::text(&names.collect::<String>())?;
        }
    }
    Ok(CommandEnd::Fine)
}

fn table(templates: &[TemplateView]) -> String {
    if templates.is_empty() {
        return "no template is offered: an operator labels ConfigMaps with kubewitness.dev/template\n"
            .into();
    }
    let mut table = TextTable::new(&["TEMPLATE", "PARAMETER", "TYPE", "DEFAULT", "HELP"]);
    for template in templates {
        table.push_row([
            clean_line(&template.name).into(),
            String::new(),
            String::new(),
            String::new(),
            clean_line(&template.about).into(),
        ]);
        for parameter in &template.parameters {
            table.push_row([
                String::new(),
                clean_line(&parameter.name).into(),
                type_with_limits(parameter),
                match (&parameter.default, parameter.required) {
                    (Some(default), _) => clean_line(&plain_text(default)).into(),
                    (None, true) => "(required)".into(),
                    (None, false) => String::new(),
                },
                clean_line(&parameter.help).into(),
            ]);
        }
    }
    table.render()
}

fn plain_text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// The type and its limits.
fn type_with_limits(parameter: &ParameterSpec) -> String {
    let name = serde_json::to_value(parameter.kind).map(|name| plain_text(&name)).unwrap_or_default();
    let bounds = match (&parameter.min, &parameter.max) {
        (None, None) if parameter.choices.is_empty() => String::new(),
        (None, None) => format!(" {}", parameter.choices.join("|")),
        (min, max) => {
            let side = |bound: &Option<Value>| bound.as_ref().map(plain_text).unwrap_or_default();
            format!(" {}..{}", side(min), side(max))
        }
    };
    clean_line(&format!("{name}{bounds}")).into_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_list_shows_each_parameter_with_what_it_takes() {
        let template = TemplateView {
            name: "train".into(),
            about: "Trains.".into(),
            namespaces: Vec::new(),
            parameters: serde_json::from_value(json!([
                {"name": "gpus", "type": "int", "min": 0, "max": 8, "default": 1, "help": "Of one pod.", "places": []},
                {"name": "size", "type": "choice", "choices": ["s", "l"], "required": true, "places": []},
            ]))
            .unwrap(),
        };
        let text = table(&[template]);
        for part in ["train", "Trains.", "gpus", "int 0..8", "Of one pod.", "choice s|l", "(required)"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn only_where_nobody_knows_whether_there_is_a_job_a_key_is_advised() {
        let explained =
            |error: anyhow::Error, dry_run| format!("{:#}", explain_refusal(error, dry_run, "k1"));
        for refused in
            [UsageError::error("no such field"), RefusedRequest::final_refusal("quota exceeded").into()]
        {
            let text = explained(refused, false);
            assert!(
                text.starts_with("the submission did not succeed: ") && !text.contains("--key"),
                "{text}"
            );
        }
        let lost = anyhow::anyhow!("the connection broke");
        assert!(explained(lost, false).contains("add `--key k1`"));
        assert_eq!(explained(anyhow::anyhow!("no"), true), "the Job was not checked: no");
    }

    #[test]
    fn what_became_of_a_submission_is_told_apart() {
        let view = |created, dry_run| SubmitView {
            name: "a".into(),
            namespace: "n".into(),
            created,
            dry_run,
            ..SubmitView::default()
        };
        assert_eq!(text(&view(true, false)), "job/a in n is created\n");
        assert!(text(&view(false, false)).contains("earlier request"));
        assert!(text(&view(false, true)).contains("nothing was created"));
    }
}
