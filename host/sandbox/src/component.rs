//! A compiled component: its name, its imports, and whether it fits a manifest. The same code serves
//! `kubewitness check` and decides whether a plugin may become active, so that a check never promises too
//! much.

use std::sync::Arc;
use std::time::Duration;

use kubewitness_core::config::{GrantsSpec, LimitsSpec, ManifestFault, PluginSpec, TickSpec, config_faults};
use kubewitness_core::ports::GrantProvider;
use kubewitness_core::shorten_text;
use serde::{Deserialize, Serialize};
use tokio::sync::OnceCell;
use wasmtime::Store;
use wasmtime::component::{Component as Code, InstancePre, Linker};

use crate::bindings::exports::kubewitness::plugin::handler;
use crate::bindings::ticks::{Ticks, TicksIndices};
use crate::bindings::{Full, FullIndices, types::FieldError};
use crate::compile::shape::{OTHERWISE, TICKER};
use crate::engine::SandboxEngine;
use crate::error::SandboxError;
use crate::guest::GuestState;
use crate::instance::GuestInstance;
use crate::plugin::SandboxPlugin;

/// How many faults of a configuration are reported at once, as many as a person fixes at once.
const MOST_FAULTS: usize = 50;

/// A component's description of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ComponentDescription {
    pub name: String,
    pub version: String,
    /// The grants without which it cannot work: `kv`, `sql:main`, …
    pub needs: Vec<String>,
    /// The grants that it also needs, or may use, with some configurations.
    #[serde(default)]
    pub sometimes: ConditionalNeeds,
    /// The JSON Schema of its configuration; empty if it has none.
    #[serde(default)]
    pub config_schema: String,
}

impl ComponentDescription {
    /// The grants that it needs with this configuration.
    pub fn needs_with(&self, config: &serde_json::Map<String, serde_json::Value>) -> Vec<String> {
        self.sometimes.needs_with_config(&self.needs, config)
    }
}

/// The limit of each text in a component's description, and of the number of its needs. People read them.
const TEXT_BYTES: usize = 256;
const MOST_NEEDS: usize = 100;
/// A larger schema is not read: each manifest is checked against it.
const SCHEMA_BYTES: usize = 256 << 10;

impl From<handler::Description> for ComponentDescription {
    fn from(said: handler::Description) -> Self {
        let short = |text: &String| shorten_text(text, TEXT_BYTES).into_owned();
        let needs = said.needs.iter().take(MOST_NEEDS).map(short).collect();
        // A truncated schema would refuse valid configurations.
        let config_schema = said.config_schema.clone();
        let config_schema = if config_schema.len() > SCHEMA_BYTES { String::new() } else { config_schema };
        Self {
            name: short(&said.name),
            version: short(&said.version),
            needs,
            sometimes: ConditionalNeeds::of(&said.extra),
            config_schema,
        }
    }
}

/// The needs of a component under some configurations, as the facts `needs-with:FIELD`, `needs-without:FIELD`
/// and `may-need` of its description say.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConditionalNeeds {
    /// For each condition, the field, whether it must be present or absent, and the need.
    needs: Vec<(String, bool, String)>,
    may: Vec<String>,
}

impl ConditionalNeeds {
    fn of(extra: &[(String, String)]) -> Self {
        let short = |text: &str| shorten_text(text, TEXT_BYTES).into_owned();
        let mut all = Self::default();
        for (key, value) in extra.iter().take(MOST_NEEDS) {
            let list =
                value.split(',').map(str::trim).filter(|need| !need.is_empty()).take(MOST_NEEDS).map(short);
            match key.split_once(':') {
                Some(("needs-with", field)) => all.needs.extend(list.map(|need| (short(field), true, need))),
                Some(("needs-without", field)) => {
                    all.needs.extend(list.map(|need| (short(field), false, need)));
                }
                None if key == "may-need" => all.may.extend(list),
                _ => {}
            }
        }
        all
    }

    /// Whether any of these needs is met by a capability.
    fn has_capability(&self, capability: &str) -> bool {
        let of = |need: &String| need.split(':').next() == Some(capability);
        self.may.iter().any(of) || self.needs.iter().any(|(_, _, need)| of(need))
    }

    /// The needs with this configuration: the constant ones and the conditional ones.
    fn needs_with_config(
        &self,
        always: &[String],
        config: &serde_json::Map<String, serde_json::Value>,
    ) -> Vec<String> {
        // A switch that is off counts as absent.
        let is_off = |value: &serde_json::Value| matches!(value, serde_json::Value::Bool(false));
        let applies = |field: &String, is_there: bool| {
            config.get(field).is_some_and(|value| !is_off(value)) == is_there
        };
        let now = self.needs.iter().filter(|(field, is_there, _)| applies(field, *is_there));
        always.iter().cloned().chain(now.map(|(_, _, need)| need.clone())).collect()
    }
}

#[derive(Clone)]
pub struct PluginComponent {
    inner: Arc<ComponentInner>,
}

/// The facts about a component that are known before it describes itself.
pub(crate) struct ComponentFace {
    pub digest: String,
    pub interface: String,
    pub imports: Vec<String>,
    pub compile_time: Duration,
    /// Whether it exports `ticker`.
    pub ticks: bool,
}

/// The functions of one instance.
pub(crate) struct InstanceExports {
    pub handler: Full,
    pub ticker: Option<Ticks>,
}

struct ComponentInner {
    engine: SandboxEngine,
    face: ComponentFace,
    /// Keeps the code loaded, so that the next plugin with the same bytes finds it.
    _code: Arc<Code>,
    pre: InstancePre<GuestState>,
    handler: FullIndices,
    /// `None` if it exports no `ticker`.
    ticker: Option<TicksIndices>,
    description: OnceCell<ComponentDescription>,
}

impl PluginComponent {
    pub(crate) fn new(
        engine: SandboxEngine,
        face: ComponentFace,
        code: Arc<Code>,
        linker: &Linker<GuestState>,
    ) -> Result<Self, SandboxError> {
        let other = |error: wasmtime::Error| {
            SandboxError::Unfit(format!(
                "the component was built against other interfaces than the controller's: {error:#}: {OTHERWISE}"
            ))
        };
        let pre = linker.instantiate_pre(&code).map_err(other)?;
        let handler = FullIndices::new(&pre).map_err(other)?;
        let ticker = face.ticks.then(|| TicksIndices::new(&pre)).transpose().map_err(other)?;
        let description = OnceCell::new();
        Ok(Self {
            inner: Arc::new(ComponentInner { engine, face, _code: code, pre, handler, ticker, description }),
        })
    }

    /// sha256 of the file, hex.
    pub fn file_digest(&self) -> &str {
        &self.inner.face.digest
    }

    /// The version of the interfaces that it uses.
    pub fn interface_version(&self) -> &str {
        &self.inner.face.interface
    }

    /// The capabilities that it uses: `sql`, `http`, `kv`, …
    pub fn imported_capabilities(&self) -> &[String] {
        &self.inner.face.imports
    }

    /// The duration of its compilation; zero if its code came from the cache.
    pub fn compile_time(&self) -> Duration {
        self.inner.face.compile_time
    }

    /// Whether it can be called on a schedule.
    pub fn exports_ticker(&self) -> bool {
        self.inner.face.ticks
    }

    /// The component's description of itself, read once.
    pub async fn describe_itself(&self) -> Result<ComponentDescription, SandboxError> {
        let ask = async || {
            let mut instance = self.describing_instance("{}".into(), &LimitsSpec::default()).await?;
            let answer = instance.call_describe().await;
            answer.map_err(|error| SandboxError::Guest { call: "describe", error })
        };
        self.inner.description.get_or_try_init(ask).await.cloned()
    }

    /// Everything that prevents this component from running with this manifest.
    pub async fn check(&self, spec: &PluginSpec) -> Result<Vec<ManifestFault>, SandboxError> {
        let described = self.describe_itself().await?;
        let needs = described.needs_with(&spec.config);
        let mut faults =
            missing_grants(self.imported_capabilities(), &needs, &described.sometimes, &spec.grants);
        faults.extend(wrong_schedule(self.exports_ticker(), self.interface_version(), &needs, spec.tick));
        let config = serde_json::Value::Object(spec.config.clone());
        let misfits = schema_misfits(&described.config_schema, &config);
        if !misfits.is_empty() {
            faults.extend(misfits);
            return Ok(faults);
        }
        let config = config.to_string();
        let mut instance = self.describing_instance(config.as_str().into(), &spec.limits).await?;
        let guest_faults =
            instance.check(&config).await.map_err(|error| SandboxError::Guest { call: "check", error })?;
        faults.extend(guest_faults.into_iter().take(MOST_FAULTS).map(config_fault));
        Ok(faults)
    }

    /// Valid settings that are probably not intended.
    pub fn warnings(&self, spec: &PluginSpec) -> Vec<ManifestFault> {
        let may_do_without = || {
            self.inner.description.get().is_some_and(|described| described.sometimes.has_capability("tick"))
        };
        if !self.exports_ticker() || spec.tick.is_some() || may_do_without() {
            return Vec::new();
        }
        let message = format!(
            "the component exports `{TICKER}`, and is never called on a schedule: add `spec.tick`, such as \
             `tick: {{every: 30s}}`, unless its own page says that it can do without"
        );
        vec![ManifestFault { field: "spec.tick".into(), message }]
    }

    /// A plugin that is ready to be called. Nothing is instantiated yet.
    pub fn make_plugin(
        &self,
        name: &str,
        limits: &LimitsSpec,
        grants: Arc<dyn GrantProvider>,
    ) -> Result<SandboxPlugin, SandboxError> {
        Ok(SandboxPlugin::new(name, self.clone(), limits.clone(), grants))
    }

    /// An instance that describes itself, and gets no states. All such instances share the turns of one
    /// plugin.
    async fn describing_instance(
        &self,
        config: Arc<str>,
        limits: &LimitsSpec,
    ) -> Result<GuestInstance, SandboxError> {
        let seat = self.sandbox_engine().cpu_turns().issue_ticket(&"".into());
        GuestInstance::new(self, config, limits, Arc::default(), seat)
            .await
            .map_err(|error| SandboxError::Guest { call: "instantiate", error })
    }

    pub(crate) fn sandbox_engine(&self) -> &SandboxEngine {
        &self.inner.engine
    }

    pub(crate) async fn instantiate_in(
        &self,
        store: &mut Store<GuestState>,
    ) -> wasmtime::Result<InstanceExports> {
        let instance = self.inner.pre.instantiate_async(&mut *store).await?;
        let ticker = self.inner.ticker.as_ref().map(|ticker| ticker.load(&mut *store, &instance));
        Ok(InstanceExports {
            handler: self.inner.handler.load(store, &instance)?,
            ticker: ticker.transpose()?,
        })
    }
}

/// Lists the faults of a configuration against the component's schema. An unreadable schema decides nothing.
fn schema_misfits(schema: &str, config: &serde_json::Value) -> Vec<ManifestFault> {
    let Ok(schema) = serde_json::from_str(schema) else { return Vec::new() };
    let fault = |ManifestFault { field, message }| config_fault(FieldError { path: field, message });
    config_faults(&schema, config).into_iter().map(fault).collect()
}

fn config_fault(error: FieldError) -> ManifestFault {
    let field = match error.path.as_str() {
        "" => "spec.config".to_string(),
        path if path.starts_with('[') => format!("spec.config{path}"),
        path => format!("spec.config.{path}"),
    };
    ManifestFault { field, message: error.message }
}

/// A schedule without the function for it, or a function that needs one.
fn wrong_schedule(
    ticks: bool,
    interface: &str,
    needs: &[String],
    tick: Option<TickSpec>,
) -> Option<ManifestFault> {
    let message = match tick {
        Some(_) if !ticks => format!(
            "the component can't be called on a schedule: it exports no `{TICKER}`, which interface 1.1 has (it speaks \
             {interface}). Build it with that export, or take `spec.tick` out"
        ),
        None if needs.iter().any(|need| need == "tick") => {
            "the component needs `tick`, and is never called on a schedule: add `spec.tick`, such as \
             `tick: {every: 30s}`"
                .into()
        }
        _ => return None,
    };
    Some(ManifestFault { field: "spec.tick".into(), message })
}

/// Imports without a grant, then needs without a grant.
fn missing_grants(
    imports: &[String],
    needs: &[String],
    sometimes: &ConditionalNeeds,
    grants: &GrantsSpec,
) -> Vec<ManifestFault> {
    let mut faults = Vec::new();
    for import in imports.iter().filter(|import| !sometimes.has_capability(import)) {
        let granted = match import.as_str() {
            "sql" => !grants.sql.is_empty(),
            "http" => !grants.http.is_empty(),
            "mail" => !grants.mail.is_empty(),
            // One interface belongs to two grants: a plugin may have the right to sign only.
            "ledger" => !grants.ledger.is_empty() || !grants.keys.is_empty(),
            // The grant of a ledger includes this interface.
            "persons" => !grants.ledger.is_empty(),
            "kv" => grants.kv,
            "lister" => !grants.lister.is_empty(),
            "outcomes" => !grants.outcomes.is_empty(),
            _ => true,
        };
        if !granted {
            let message =
                format!("the component imports `{import}` and is granted none, so it would be denied");
            faults.push(ManifestFault { field: format!("spec.grants.{}", need_field(import)), message });
        }
    }
    for need in needs {
        let field = format!("spec.grants.{}", need_field(need));
        if !is_met(need, grants) && !faults.iter().any(|fault| fault.field == field) {
            faults.push(ManifestFault {
                field,
                message: format!("the component needs `{need}`, which is not granted"),
            });
        }
    }
    faults
}

fn need_field(need: &str) -> &str {
    match need.split_once(':').map_or(need, |(capability, _)| capability) {
        "key" => "keys",
        "persons" => "ledger",
        capability => capability,
    }
}

fn is_met(need: &str, grants: &GrantsSpec) -> bool {
    let (capability, name) = need.split_once(':').unwrap_or((need, ""));
    let meets = |granted: &String| name.is_empty() || granted == name;
    match capability {
        "sql" => grants.sql.iter().any(|grant| meets(&grant.name)),
        "http" => grants.http.iter().any(|grant| meets(&grant.name)),
        "mail" => grants.mail.iter().any(|grant| meets(&grant.name)),
        "ledger" => grants.ledger.iter().any(|grant| meets(&grant.name)),
        "key" => grants.keys.iter().any(|grant| meets(&grant.name)),
        "lister" => grants.lister.iter().any(meets),
        "outcomes" => grants.outcomes.iter().any(meets),
        "kv" => grants.kv,
        // A schedule is not a grant: `wrong_schedule` checks it.
        "tick" => true,
        // Every plugin meets needs without a grant; no host meets unknown ones.
        "documents" | "config" | "log" | "clock" => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grants(value: serde_json::Value) -> GrantsSpec {
        serde_json::from_value(value).unwrap()
    }

    fn fields(imports: &[&str], needs: &[&str], granted: serde_json::Value) -> Vec<String> {
        let owned = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        let faults =
            missing_grants(&owned(imports), &owned(needs), &ConditionalNeeds::default(), &grants(granted));
        faults.into_iter().map(|fault| fault.field).collect()
    }

    #[test]
    fn what_is_needed_may_depend_on_the_configuration() {
        let of = |key: &str, value: &str| (key.to_string(), value.to_string());
        let sometimes = ConditionalNeeds::of(&[
            of("needs-with:channels", "kv,tick"),
            of("needs-without:channels", "http:people"),
            of("needs-with:sign", "key:trail"),
            of("may-need", "mail"),
            of("unknown", "sql"),
        ]);
        assert!(
            ["kv", "tick", "http", "mail"].iter().all(|one| sometimes.has_capability(one))
                && !sometimes.has_capability("sql")
        );
        let needs = |config: serde_json::Value| {
            sometimes.needs_with_config(&["log".into()], config.as_object().unwrap())
        };
        assert_eq!(needs(serde_json::json!({})), ["log", "http:people"]);
        assert_eq!(needs(serde_json::json!({"channels": []})), ["log", "kv", "tick"]);
        assert_eq!(needs(serde_json::json!({"sign": true})), ["log", "http:people", "key:trail"]);
        assert_eq!(needs(serde_json::json!({"sign": false})), ["log", "http:people"]);
        let imports = ["http", "kv", "mail"].map(String::from);
        let granted = grants(serde_json::json!({"http": [{"name": "people", "destination": "people"}]}));
        assert_eq!(missing_grants(&imports, &needs(serde_json::json!({})), &sometimes, &granted), []);
        let missing =
            missing_grants(&imports, &needs(serde_json::json!({"channels": []})), &sometimes, &granted);
        assert_eq!(missing.into_iter().map(|fault| fault.field).collect::<Vec<_>>(), ["spec.grants.kv"]);
    }

    #[test]
    fn what_a_component_says_of_itself_is_shortened() {
        let long = "n".repeat(1 << 20);
        let description = ComponentDescription::from(handler::Description {
            name: long.clone(),
            version: long.clone(),
            config_schema: long.clone(),
            needs: vec![long; 1000],
            extra: Vec::new(),
        });
        assert_eq!((description.name.len(), description.needs.len()), (TEXT_BYTES + "…".len(), MOST_NEEDS));
    }

    #[test]
    fn an_import_without_a_grant_is_told_once() {
        let none = serde_json::json!({});
        assert_eq!(
            fields(&["kv", "log", "sql"], &["kv", "sql:main"], none),
            ["spec.grants.kv", "spec.grants.sql"]
        );
    }

    #[test]
    fn a_need_is_met_by_a_grant_of_its_name() {
        let granted = || serde_json::json!({"sql": [{"name": "main", "database": "platform"}], "kv": true});
        assert!(fields(&["sql"], &["sql:main", "kv", "sql"], granted()).is_empty());
        assert_eq!(fields(&["sql"], &["sql:other"], granted()), ["spec.grants.sql"]);
        assert_eq!(fields(&[], &["key:audit"], granted()), ["spec.grants.keys"]);
        assert_eq!(fields(&[], &["gpu"], granted()), ["spec.grants.gpu"]);
    }

    #[test]
    fn a_schedule_and_the_export_for_it_need_each_other() {
        let tick = serde_json::from_str(r#"{"every": "30s"}"#).unwrap();
        let needs = ["tick".to_string()];
        let fault_message =
            |ticks, needs: &[String], tick| wrong_schedule(ticks, "1.0.0", needs, tick).map(|it| it.message);
        assert_eq!(
            (
                fault_message(true, &needs, tick),
                fault_message(false, &[], None),
                fault_message(true, &[], None)
            ),
            (None, None, None)
        );
        let message = fault_message(false, &[], tick).unwrap();
        assert!(
            message.contains("exports no `kubewitness:plugin/ticker`") && message.contains("speaks 1.0.0")
        );
        assert!(fault_message(true, &needs, None).unwrap().contains("add `spec.tick`"));
        assert!(
            missing_grants(&[], &needs, &ConditionalNeeds::default(), &GrantsSpec::default()).is_empty(),
            "it is told once"
        );
    }

    #[test]
    fn a_key_alone_is_enough_for_one_who_only_signs() {
        let granted = serde_json::json!({"keys": [{"name": "audit", "key": "audit"}]});
        assert!(fields(&["ledger"], &["key:audit"], granted).is_empty());
    }

    #[test]
    fn a_guests_path_becomes_a_field_of_the_manifest() {
        for (path, field) in [("", "spec.config"), ("a.b", "spec.config.a.b"), ("[0]", "spec.config[0]")] {
            let error = FieldError { path: path.to_string(), message: "m".to_string() };
            assert_eq!(config_fault(error).field, field);
        }
    }
}
