//! The text format 0.0.4 of Prometheus: families, and their samples.

use std::fmt::Write;

use kubewitness_core::views::HistogramView;

use MetricKind::{Counter, Gauge, Histogram};

const PREFIX: &str = "kubewitness";

#[derive(Clone, Copy)]
pub enum MetricKind {
    Counter,
    Gauge,
    Histogram,
}

#[derive(Default)]
pub struct MetricsPage {
    pub text: String,
}

impl MetricsPage {
    pub fn write_family(&mut self, name: &str, help: &str, kind: MetricKind) {
        self.plain_family(&format!("{PREFIX}_{name}"), help, kind);
    }

    pub fn write_sample(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        self.plain_sample(&format!("{PREFIX}_{name}"), labels, value);
    }

    pub fn write_histogram(&mut self, name: &str, label: (&str, &str), view: &HistogramView) {
        let bucket = format!("{name}_bucket");
        for (bound, count) in &view.buckets {
            self.plain_sample(&bucket, &[label, ("le", &bound.to_string())], *count as f64);
        }
        self.plain_sample(&bucket, &[label, ("le", "+Inf")], view.count as f64);
        self.plain_sample(&format!("{name}_sum"), &[label], view.sum_seconds);
        self.plain_sample(&format!("{name}_count"), &[label], view.count as f64);
    }

    pub fn plain_family(&mut self, name: &str, help: &str, kind: MetricKind) {
        let kind = match kind {
            Counter => "counter",
            Gauge => "gauge",
            Histogram => "histogram",
        };
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        // Writing to a string can't fail.
        writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}").ok();
    }

    pub fn plain_sample(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        let labels: Vec<_> =
            labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escape_label(value))).collect();
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        writeln!(self.text, "{name}{labels} {value}").ok();
    }
}

fn escape_label(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// Seconds since 1970 for a time in the form of the views; `None` for any other text.
pub fn seconds_of_time(text: &str) -> Option<f64> {
    kubewitness_core::calendar::parse(text).map(|ms| ms as f64 / 1000.0)
}
