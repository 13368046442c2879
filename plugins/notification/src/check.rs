//! Finds faults of a configuration: names that point nowhere, fields of another kind of channel, too many
//! entries.

use kubewitness_sdk::FieldError;

use crate::channels::webhook;
use crate::config::{Channel, Config, Kind, Span};
use crate::decide::PHASES;
use crate::{direct, template};

/// Every state is compared with each channel and each route.
const CHANNELS: usize = 32;
const ROUTES: usize = 256;
/// Each is read from the document of every reported state.
const POINTERS: usize = 16;
/// The most bytes of a title or a text, and of a template as JSON. Each placeholder in them may become 512
/// bytes.
const TEXT_BYTES: usize = 4 << 10;
const TEMPLATE_BYTES: usize = 32 << 10;
/// Messages are remembered no longer than this.
const LONGEST: Span = Span::seconds(30 * 24 * 3600);
/// The headers that the plugin sets itself.
const OWN_HEADERS: [&str; 2] = [direct::KEY, "content-type"];
const CHANGES: [&str; 2] = ["present", "gone"];

pub fn check(config: &Config) -> Vec<FieldError> {
    let mut faults = Vec::new();
    headers("", config.headers.keys(), &mut faults);
    path("path", &config.path, &mut faults);
    if config.is_direct() {
        faults.extend(direct::check(config));
        check_idle_fields(config, &mut faults);
        return faults;
    }
    for (index, channel) in config.channels.iter().enumerate() {
        check_channel(&format!("channels[{index}]"), channel, &mut faults);
    }
    for (index, channel) in config.channels.iter().enumerate() {
        if config.channels[..index].iter().any(|before| before.name == channel.name) {
            let message = format!("`{}` occurs twice: give each channel a name of its own", channel.name);
            faults.push(FieldError::new(format!("channels[{index}].name"), message));
        }
    }
    check_routes(config, &mut faults);
    check_texts(config, &mut faults);
    faults
}

/// Without channels these fields have no effect, so they are a mistake.
fn check_idle_fields(config: &Config, faults: &mut Vec<FieldError>) {
    for (field, is_there) in [
        ("routes", config.routes.is_some()),
        ("namespaces", !config.namespaces.is_empty()),
        ("quiet", config.quiet.is_some()),
        ("title", config.title.is_some()),
        ("text", config.text.is_some()),
        ("mute", config.mute),
    ] {
        if is_there {
            faults.push(FieldError::new(field, "has no effect without `channels`: add a channel"));
        }
    }
}

fn check_channel(place: &str, channel: &Channel, faults: &mut Vec<FieldError>) {
    let at = |field: &str| format!("{place}.{field}");
    let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if channel.name.is_empty() || channel.name.len() > 63 || !channel.name.chars().all(is_name) {
        let message =
            format!("`{}` is no name: use up to 63 lower-case letters, digits and dashes", channel.name);
        faults.push(FieldError::new(at("name"), message));
    }
    for (field, is_there, kind) in [
        ("headers", !channel.headers.is_empty(), Kind::Webhook),
        ("template", channel.template.is_some(), Kind::Webhook),
        ("source", !channel.source.is_empty(), Kind::CloudEvents),
    ] {
        if is_there && channel.kind != kind {
            faults.push(FieldError::new(at(field), format!("is for a channel of the kind {kind:?} alone")));
        }
    }
    headers(&format!("{place}."), channel.headers.keys(), faults);
    path(&at("path"), &channel.path, faults);
    if let Some(filled) = &channel.template {
        let bytes = crate::facts::json(filled).len();
        if bytes > TEMPLATE_BYTES {
            faults.push(FieldError::new(
                at("template"),
                format!("has {bytes} bytes: the most is {TEMPLATE_BYTES}"),
            ));
        }
        faults.extend(template::check(&at("template"), filled, &webhook::OWN));
    }
}

fn check_routes(config: &Config, faults: &mut Vec<FieldError>) {
    let mut recipients = |place: String, to: &[String]| {
        for (index, text) in to.iter().enumerate() {
            if let Err(message) = config.find_recipient(text) {
                faults.push(FieldError::new(format!("{place}[{index}]"), message));
            }
        }
    };
    let routes = config.routes.as_deref().unwrap_or_default();
    for (index, route) in routes.iter().enumerate() {
        recipients(format!("routes[{index}].to"), &route.to);
    }
    for (name, namespace) in &config.namespaces {
        recipients(format!("namespaces.{name}.to"), &namespace.to);
    }
    phases("phases".into(), &config.phases, faults);
    let of_routes = routes
        .iter()
        .enumerate()
        .filter_map(|(index, route)| Some((format!("routes[{index}].hours"), route.hours.as_ref()?)));
    let of_quiet = config.quiet.iter().map(|quiet| ("quiet.hours".to_string(), &quiet.hours));
    for (field, _) in of_routes.chain(of_quiet).filter(|(_, hours)| hours.from == hours.to) {
        faults.push(FieldError::new(field, "`from` and `to` are the same, so it never holds"));
    }
    if let Some(quiet) = &config.quiet {
        phases("quiet.except".into(), &quiet.except, faults);
    }
    for (index, route) in routes.iter().enumerate() {
        if route.to.is_empty() {
            faults.push(FieldError::new(format!("routes[{index}].to"), "is empty: name a channel"));
        }
        phases(format!("routes[{index}].phases"), &route.phases, faults);
        for change in route.changes.iter().filter(|change| !CHANGES.contains(&change.as_str())) {
            let message = format!("`{change}` is never told; there are {}", CHANGES.join(", "));
            faults.push(FieldError::new(format!("routes[{index}].changes"), message));
        }
    }
}

fn phases(field: String, phases: &[String], faults: &mut Vec<FieldError>) {
    if let Some(wrong) = phases.iter().find(|phase| !PHASES.contains(&phase.as_str())) {
        let message = format!("`{wrong}` is no phase; there are {}", PHASES.join(", "));
        faults.push(FieldError::new(field, message));
    }
}

fn check_texts(config: &Config, faults: &mut Vec<FieldError>) {
    for (field, text) in [("title", &config.title), ("text", &config.text)] {
        let Some(text) = text else { continue };
        if text.len() > TEXT_BYTES {
            faults
                .push(FieldError::new(field, format!("has {} bytes: the most is {TEXT_BYTES}", text.len())));
        }
        faults.extend(template::check(field, &text.clone().into(), &[]));
    }
    if !config.portal.is_empty()
        && !config.portal.starts_with("https://")
        && !config.portal.starts_with("http://")
    {
        faults.push(FieldError::new("portal", format!("`{}` is no http or https address", config.portal)));
    }
    for (field, count, most) in [
        ("channels", config.channels.len(), CHANNELS),
        ("routes", config.routes.as_ref().map_or(0, Vec::len), ROUTES),
    ] {
        if count > most {
            faults.push(FieldError::new(field, format!("has {count} entries: the most is {most}")));
        }
    }
    let pointers = config.pointers().len();
    if pointers > POINTERS {
        let message =
            format!("its texts and templates have {pointers} JSON Pointers: the most is {POINTERS}");
        faults.push(FieldError::new("", message));
    }
    for (field, span) in [
        ("settle", config.settle),
        ("repeat", config.repeat),
        ("oldest", config.oldest),
        ("digest.every", config.digest.every),
    ] {
        if span.ms > LONGEST.ms {
            faults.push(FieldError::new(field, "is over 30d"));
        }
    }
    if config.digest.above == 0 {
        faults.push(FieldError::new("digest.above", "is 0: write 1 or more"));
    }
}

fn headers<'a>(place: &str, names: impl Iterator<Item = &'a String>, faults: &mut Vec<FieldError>) {
    for name in names.filter(|name| OWN_HEADERS.contains(&name.to_ascii_lowercase().as_str())) {
        faults.push(FieldError::new(format!("{place}headers.{name}"), "is set by the plugin itself"));
    }
}

fn path(field: &str, path: &str, faults: &mut Vec<FieldError>) {
    if path.split('/').any(|segment| segment == "..") {
        faults.push(FieldError::new(field, "leaves the destination"));
    }
}
