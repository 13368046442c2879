//! What probes and Prometheus ask for.

use std::fmt::Write;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use kubewitness_core::views::{PluginView, SourceView, StatusView};

use crate::app::{App, Route};
use crate::problem::Problem;

pub(crate) fn routes() -> Vec<Route> {
    vec![("/healthz", get(healthz)), ("/readyz", get(readyz)), ("/metrics", get(metrics))]
}

/// The process runs and answers; whether it does its work is for `/readyz`.
async fn healthz() -> &'static str {
    "ok\n"
}

async fn readyz(State(app): State<App>) -> Response {
    match app.views.ready() {
        Ok(()) => "ready\n".into_response(),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {why}\n")).into_response(),
    }
}

async fn metrics(State(app): State<App>) -> Result<Response, Problem> {
    let status = app.views.status().await?;
    let text = render(&status, app.views.ready().is_ok());
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response())
}

type OfSource = (&'static str, &'static str, fn(&SourceView) -> f64);
type OfPlugin = (&'static str, &'static str, fn(&PluginView) -> f64);

const SOURCES: [OfSource; 5] = [
    ("source_objects", "Objects in the cache.", |s| s.objects as f64),
    ("source_synced", "1 once the first list is complete.", |s| f64::from(u8::from(s.synced))),
    ("source_epoch", "Grows when the API server's history was replaced.", |s| f64::from(s.epoch)),
    ("source_gaps", "Known holes in what was witnessed.", |s| s.gaps as f64),
    ("source_poison", "Frames that were kept raw because they did not decode.", |s| s.poison as f64),
];

/// observed = delivered + filtered + dead + waiting, for each plugin.
const PLUGINS: [OfPlugin; 9] = [
    ("plugin_active", "1 while the plugin takes states.", |p| f64::from(u8::from(p.state == "active"))),
    ("plugin_observed", "States that the plugin is to be handed.", |p| p.observed as f64),
    ("plugin_delivered", "Of the observed, those that it has done.", |p| p.delivered as f64),
    ("plugin_filtered", "Of the observed, those that it did not subscribe to.", |p| p.filtered as f64),
    ("plugin_dead", "Of the observed, those that are parked.", |p| p.dead as f64),
    ("plugin_waiting", "Of the observed, those still to be done.", |p| p.waiting as f64),
    ("plugin_retrying", "Of the waiting, those that failed at least once.", |p| p.retrying as f64),
    ("plugin_lag_positions", "Positions between the newest state and the cursor.", |p| p.lag_seq as f64),
    ("plugin_lag_seconds", "Age of the oldest unfinished state.", |p| p.lag_seconds),
];

fn render(status: &StatusView, ready: bool) -> String {
    let mut text = String::new();
    let mut family = |name: &str, help: &str, samples: &mut dyn Iterator<Item = (String, f64)>| {
        // Writing to a string can't fail.
        writeln!(text, "# HELP kubewitness_{name} {help}\n# TYPE kubewitness_{name} gauge").ok();
        for (labels, value) in samples {
            writeln!(text, "kubewitness_{name}{labels} {value}").ok();
        }
    };
    let journal = &status.journal;
    let plain = [
        ("ready", "1 while states are taken in and kept.", f64::from(u8::from(ready))),
        ("journal_states", "States in the journal.", journal.states as f64),
        ("journal_bytes", "Bytes of the journal.", journal.bytes as f64),
        ("journal_oldest_seq", "The oldest position that is kept.", journal.oldest_seq as f64),
        ("journal_newest_seq", "The newest position.", journal.newest_seq as f64),
    ];
    for (name, help, value) in plain {
        family(name, help, &mut std::iter::once((String::new(), value)));
    }
    for (name, help, value) in SOURCES {
        family(name, help, &mut status.sources.iter().map(|s| (label("source", &s.name), value(s))));
    }
    for (name, help, value) in PLUGINS {
        family(name, help, &mut status.plugins.iter().map(|p| (label("plugin", &p.name), value(p))));
    }
    text
}

fn label(name: &str, value: &str) -> String {
    let escaped = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    format!("{{{name}=\"{escaped}\"}}")
}
