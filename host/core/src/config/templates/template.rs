//! A template: how it is checked, and how a person's values complete it.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::parameter::{ParameterSpec, ValueError};
use super::{CHOICES_MOST, PARAMETERS_MOST, PLACES_MOST, TEXT_BYTES};
use crate::model::fault::{ManifestFault, shorten_text};
use crate::model::kinds::is_name;
use crate::project::JsonPointer;
use crate::redact::RedactionRules;

/// Fields that the controller sets. No parameter may change them.
const CONTROLLER_FIELDS: [&str; 5] =
    ["/apiVersion", "/kind", "/metadata/name", "/metadata/namespace", "/metadata/generateName"];
/// The prefix of the controller's annotations.
const ANNOTATION_PREFIX: &str = "/metadata/annotations/kubewitness.dev";
/// How many bytes of an unknown name a message quotes.
const NAME_SHOWN: usize = 80;

/// A Job that people submit by filling in its parameters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TemplateSpec {
    /// A sentence that helps people to choose the template.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub about: String,
    /// The namespaces to which people may submit it. Left out: every namespace in which a person may create Jobs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub namespaces: Vec<String>,
    /// The parameters that a person fills in.
    #[cfg_attr(test, schemars(length(max = PARAMETERS_MOST)))]
    #[serde(default)]
    pub parameters: Vec<ParameterSpec>,
    /// The Job, of `batch/v1`, whole and with example values. Names of Jobs begin with the name of the template.
    pub manifest: Value,
}

/// A value that does not fit, or a parameter without one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValueFault {
    pub parameter: String,
    pub message: String,
}

impl TemplateSpec {
    pub fn check(&self) -> Vec<ManifestFault> {
        let mut faults = Vec::new();
        let mut fault = |field: String, message: String| faults.push(ManifestFault { field, message });
        if self.manifest["apiVersion"] != "batch/v1" || self.manifest["kind"] != "Job" {
            let message = "is no Job of batch/v1: write one, with example values at the places of parameters";
            fault("spec.manifest".into(), message.into());
        }
        if self.about.len() > TEXT_BYTES {
            fault("spec.about".into(), format!("is longer than {TEXT_BYTES} bytes"));
        }
        for (index, namespace) in self.namespaces.iter().enumerate().filter(|(_, name)| !is_name(name)) {
            let message = format!("`{}` is no namespace's name", shorten_text(namespace, NAME_SHOWN));
            fault(format!("spec.namespaces[{index}]"), message);
        }
        if self.parameters.len() > PARAMETERS_MOST {
            fault("spec.parameters".into(), format!("has more than {PARAMETERS_MOST} parameters"));
        }
        let (mut names, mut taken) = (BTreeSet::new(), BTreeSet::new());
        for (index, parameter) in self.parameters.iter().enumerate().take(PARAMETERS_MOST) {
            let at = format!("spec.parameters[{index}]");
            if !is_name(&parameter.name) || !names.insert(&parameter.name) {
                let message = format!(
                    "`{}` is no name, or another parameter's: use lower-case letters, digits and dashes",
                    shorten_text(&parameter.name, NAME_SHOWN)
                );
                fault(format!("{at}.name"), message);
            }
            for (list, most) in [(&parameter.choices, CHOICES_MOST), (&parameter.places, PLACES_MOST)] {
                if list.len() > most {
                    fault(at.clone(), format!("has a list of more than {most} values"));
                }
            }
            if parameter.help.len().max(parameter.pattern.as_ref().map_or(0, String::len)) > TEXT_BYTES {
                fault(at.clone(), format!("has a text of more than {TEXT_BYTES} bytes"));
            }
            for (field, message) in parameter.definition_faults() {
                fault(format!("{at}.{field}"), message);
            }
            if parameter.places.is_empty() {
                fault(format!("{at}.places"), "is empty: name where the value goes".into());
            }
            for (number, place) in parameter.places.iter().enumerate().take(PLACES_MOST) {
                let wrong = match taken.insert(place) {
                    true => self.wrong_place(parameter, place),
                    false => Some("is the place of two values: keep one".into()),
                };
                wrong.into_iter().for_each(|message| fault(format!("{at}.places[{number}]"), message));
            }
        }
        faults
    }

    fn wrong_place(&self, parameter: &ParameterSpec, place: &str) -> Option<String> {
        if let Err(error) = JsonPointer::parse(place) {
            return Some(error.to_string());
        }
        if CONTROLLER_FIELDS.contains(&place) || place.starts_with(ANNOTATION_PREFIX) {
            return Some(format!("`{place}` is set by the controller: choose another place"));
        }
        match self.manifest.pointer(place) {
            None => Some(format!(
                "the manifest has nothing at `{place}`: write an example value there, which says of what type it is"
            )),
            Some(example) if !parameter.fits_place_of(example) => Some(format!(
                "at `{place}` stands {}, and no value of this parameter is one",
                match example {
                    Value::Null => "nothing",
                    Value::Bool(_) => "true or false",
                    Value::Number(_) => "a number",
                    Value::String(_) => "a text",
                    Value::Array(_) => "a list",
                    Value::Object(_) => "an object",
                }
            )),
            Some(_) => None,
        }
    }

    /// The value that a form shows first.
    pub fn initial_value<'a>(&'a self, parameter: &'a ParameterSpec) -> Option<&'a Value> {
        let value_in_manifest = || parameter.places.first().and_then(|place| self.manifest.pointer(place));
        parameter.default.as_ref().or_else(|| if parameter.required { None } else { value_in_manifest() })
    }

    /// The parameters whose default or manifest value is a secret by these rules. These values are not shown.
    pub fn secret_parameters(&self, rules: &RedactionRules) -> BTreeSet<&str> {
        let job = self.with_defaults();
        let shown = match rules.redact_document(job.to_string().as_bytes(), |_| String::new()) {
            Ok(None) => Some(job.clone()),
            Ok(Some(shown)) => serde_json::from_slice(&shown).ok(),
            Err(_) => None,
        };
        let is_hidden = |place: &String| match &shown {
            Some(shown) => shown.pointer(place) != job.pointer(place),
            // A value that can't be searched for secrets is not shown.
            None => true,
        };
        let secret = self.parameters.iter().filter(|parameter| {
            rules.is_secret_name(&parameter.name) || parameter.places.iter().any(is_hidden)
        });
        secret.map(|parameter| parameter.name.as_str()).collect()
    }

    fn with_defaults(&self) -> Value {
        let mut job = self.manifest.clone();
        for parameter in &self.parameters {
            let Some(default) = &parameter.default else { continue };
            for place in &parameter.places {
                if let Some(example) = job.pointer_mut(place)
                    && let Some(fitted) = parameter.fit_to_type_of(default, example)
                {
                    *example = fitted;
                }
            }
        }
        job
    }

    /// The Job with these values in their places. All faults are returned together.
    pub fn fill_template(&self, given: &BTreeMap<String, Value>) -> Result<Value, Vec<ValueFault>> {
        let (mut job, mut faults) = (self.manifest.clone(), Vec::new());
        let fault = |parameter: &str, message: String| ValueFault { parameter: parameter.into(), message };
        for name in given.keys().filter(|name| !self.parameters.iter().any(|p| &p.name == *name)) {
            let known: Vec<_> = self.parameters.iter().map(|p| p.name.as_str()).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            let message = format!("is no parameter of this template; it has {known}");
            faults.push(fault(&shorten_text(name, NAME_SHOWN), message));
        }
        for parameter in &self.parameters {
            let name = &parameter.name;
            let value = match given.get(name).or(parameter.default.as_ref()) {
                Some(given) => parameter.accept_value(given),
                None if parameter.required => Err(ValueError::Missing),
                None => continue,
            };
            let value = match value {
                Ok(value) => value,
                Err(error) => {
                    faults.push(fault(name, error.to_string()));
                    continue;
                }
            };
            for place in &parameter.places {
                let fitted = job.pointer_mut(place).and_then(|example| {
                    *example = parameter.fit_to_type_of(&value, example)?;
                    Some(())
                });
                if fitted.is_none() {
                    faults.push(fault(name, format!("does not fit at `{place}` of the template")));
                }
            }
        }
        if faults.is_empty() { Ok(job) } else { Err(faults) }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn template(parameters: &Value) -> TemplateSpec {
        serde_json::from_value(json!({
            "parameters": parameters,
            "manifest": {
                "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train"},
                "spec": {
                    "parallelism": 1, "suspend": false,
                    "template": {"spec": {"containers": [{
                        "name": "main", "image": "train:1", "env": [{"name": "EPOCHS", "value": "3"}],
                    }]}},
                },
            },
        }))
        .unwrap()
    }

    const EPOCHS: &str = "/spec/template/spec/containers/0/env/0/value";
    const IMAGE: &str = "/spec/template/spec/containers/0/image";

    fn good() -> TemplateSpec {
        template(&json!([
            {"name": "workers", "type": "int", "min": 1, "max": 8, "places": ["/spec/parallelism"]},
            {"name": "epochs", "type": "int", "default": 5, "places": [EPOCHS]},
            {"name": "image", "type": "string", "required": true, "places": [IMAGE]},
        ]))
    }

    fn given(pairs: &[(&str, Value)]) -> BTreeMap<String, Value> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect()
    }

    #[test]
    fn values_go_to_their_places_in_the_type_that_stands_there() {
        let template = good();
        assert_eq!(template.check(), []);
        let job =
            template.fill_template(&given(&[("workers", json!("2")), ("image", json!("a:b"))])).unwrap();
        assert_eq!(job["spec"]["parallelism"], json!(2));
        assert_eq!(job.pointer(EPOCHS), Some(&json!("5")), "a default, as text because text stands there");
        assert_eq!(job.pointer(IMAGE), Some(&json!("a:b")));
        let unnamed = template.fill_template(&given(&[("image", json!("a:b"))])).unwrap();
        assert_eq!(unnamed["spec"]["parallelism"], json!(1), "what stands in the manifest stays");
    }

    #[test]
    fn a_default_and_a_value_of_the_manifest_that_are_secrets_are_told_by_their_parameter() {
        let rules = crate::config::HostSpec::default().compile_redaction_rules().unwrap();
        let secret = |parameters: &Value, variable: &str| {
            let mut template = template(parameters);
            template.manifest["spec"]["template"]["spec"]["containers"][0]["env"][0]["name"] =
                variable.into();
            template.secret_parameters(&rules).into_iter().map(str::to_owned).collect::<Vec<_>>()
        };
        let with = |default: &str| {
            json!([{"name": "a", "type": "string", "default": default, "places": [EPOCHS]},
                {"name": "b", "type": "string", "places": [IMAGE]}])
        };
        let without = json!([{"name": "a", "type": "string", "places": [EPOCHS]}]);
        assert_eq!(secret(&with("hush"), "HF_TOKEN"), ["a"]);
        assert_eq!(secret(&without, "HF_TOKEN"), ["a"], "what stands in the manifest");
        assert_eq!(secret(&with("redis://:hush@h"), "URL"), ["a"], "a part of it");
        assert_eq!(secret(&with("5"), "EPOCHS"), Vec::<String>::new());
        let named = json!([{"name": "password", "type": "string", "default": "hush", "places": [IMAGE]}]);
        assert_eq!(secret(&named, "EPOCHS"), ["password"]);
    }

    #[test]
    fn a_value_changes_nothing_beside_its_places_whatever_is_in_it() {
        let (template, evil) =
            (good(), "x\"\n          command: [\"rm\"]\n---\nkind: Secret\n{{ .Values }} ~1/../");
        let job = template.fill_template(&given(&[("image", json!(evil))])).unwrap();
        let mut expected = template.fill_template(&given(&[("image", json!("plain"))])).unwrap();
        *expected.pointer_mut(IMAGE).unwrap() = json!(evil);
        assert_eq!(job, expected);
    }

    #[test]
    fn all_faults_of_the_values_are_told_by_parameter() {
        let faults =
            good().fill_template(&given(&[("workers", json!(99)), ("colour", json!("red"))])).unwrap_err();
        let messages: Vec<_> =
            faults.iter().map(|fault| (fault.parameter.as_str(), &*fault.message)).collect();
        assert_eq!(
            messages,
            [
                ("colour", "is no parameter of this template; it has workers, epochs, image"),
                ("workers", "is more than 8"),
                ("image", "is missing: give a value"),
            ]
        );
    }

    #[test]
    fn a_template_with_a_fault_is_refused_by_its_field() {
        let place = |place: &str| json!([{"name": "a", "type": "int", "places": [place]}]);
        for (parameters, field, message) in [
            (place("/spec/nothing"), "spec.parameters[0].places[0]", "has nothing at"),
            (place("/metadata/name"), "spec.parameters[0].places[0]", "set by the controller"),
            (place("/kind"), "spec.parameters[0].places[0]", "set by the controller"),
            (place("spec"), "spec.parameters[0].places[0]", "not a JSON pointer"),
            (place("/spec/template"), "spec.parameters[0].places[0]", "stands an object"),
            (place("/spec/suspend"), "spec.parameters[0].places[0]", "stands true or false"),
            (json!([{"name": "A", "type": "int", "places": [EPOCHS]}]), "spec.parameters[0].name", "no name"),
            (json!([{"name": "a", "type": "int", "places": []}]), "spec.parameters[0].places", "is empty"),
            (
                json!([{"name": "a", "type": "choice", "places": [IMAGE]}]),
                "spec.parameters[0].choices",
                "is empty",
            ),
            (
                json!([{"name": "a", "type": "string", "pattern": "(", "places": [IMAGE]}]),
                "spec.parameters[0].pattern",
                "can't be used",
            ),
            (
                json!([{"name": "a", "type": "int", "max": 2, "default": 3, "places": [EPOCHS]}]),
                "spec.parameters[0].default",
                "is more than 2",
            ),
            (
                json!([{"name": "a", "type": "int", "places": [EPOCHS, EPOCHS]}]),
                "spec.parameters[0].places[1]",
                "of two values",
            ),
        ] {
            let faults = template(&parameters).check();
            let found = faults.iter().any(|fault| fault.field == field && fault.message.contains(message));
            assert!(found, "{parameters}: {faults:?}");
        }
        let pod =
            TemplateSpec { manifest: json!({"apiVersion": "v1", "kind": "Pod"}), ..template(&json!([])) };
        assert!(pod.check()[0].message.contains("no Job of batch/v1"));
        let many: Vec<_> =
            (0..65).map(|n| json!({"name": format!("a{n}"), "type": "int", "places": [EPOCHS]})).collect();
        assert!(template(&many.into()).check()[0].message.contains("more than 64"));
    }
}
