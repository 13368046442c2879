//! Takes secrets out of documents before a plugin or a person is given them. `core` finds them; this adds the key
//! of the digests. Long documents are redacted beside everything else, on threads of which each party has a share.

mod kept;
mod keyed;
mod threads;

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use kubewitness_core::config::{Fault, HostSpec, RedactionSpec, SecretRef, SourceSpec};
use kubewitness_core::files::{self, KEY_BYTES, Origin};
use kubewitness_core::ports::{Current, Documents, JournalError};
use kubewitness_core::redact::{self, Redactor, Secrets, Withheld};
use kubewitness_core::{ObjectRef, Seq, State, Status, document};
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use serde_json::{Map, Value};
use thiserror::Error;

use self::kept::{Kept, Slow};
use self::keyed::Keyed;
pub use self::threads::Party;
use self::threads::Threads;
use crate::secrets;

/// In the data folder, where the settings name no key.
const FILE: &str = "redaction.key";
/// A list waits so long for what a status quotes of a long document. It then shows the status without its texts.
const PATIENCE: Duration = Duration::from_millis(100);

/// Why a document can't be given to somebody who may not see secrets.
#[derive(Debug, Error)]
pub enum RedactionError {
    #[error(transparent)]
    Withheld(#[from] Withheld),
    /// There is no key now. The host tries again by itself.
    #[error("{0}")]
    Key(String),
}

impl From<RedactionError> for JournalError {
    fn from(error: RedactionError) -> Self {
        match error {
            RedactionError::Withheld(withheld) => Self::Invalid(withheld.to_string()),
            RedactionError::Key(message) => Self::Unavailable(message),
        }
    }
}

/// The rules of the host's settings, and the key of the digests.
///
/// A key that can't be read holds up those who may not see secrets, and nobody else.
pub struct Redaction {
    rules: Arc<Redactor>,
    spec: RedactionSpec,
    data: PathBuf,
    key: RwLock<Result<hmac::Key, String>>,
    /// Group and kind of the objects of which the journal has those that are there.
    watched: RwLock<BTreeSet<(String, String)>>,
    currents: Kept<Option<Arc<Status>>>,
    states: Kept<Option<Arc<State>>>,
    slow: Slow,
    threads: Threads,
}

impl Redaction {
    pub async fn open(host: &HostSpec, data: &Path) -> Result<Self, Vec<Fault>> {
        let redaction = Self {
            rules: Arc::new(host.redactor()?),
            spec: host.redaction.clone(),
            data: data.to_owned(),
            key: RwLock::new(Err("the redaction key was not read yet".into())),
            watched: RwLock::default(),
            currents: Kept::default(),
            states: Kept::default(),
            slow: Slow::default(),
            threads: Threads::default(),
        };
        redaction.watch(&host.sources);
        redaction.retry().await;
        Ok(redaction)
    }

    /// An Event about an object of these that was not seen yet may quote what nobody knows.
    pub fn watch(&self, sources: &[SourceSpec]) {
        let group = |source: &SourceSpec| {
            source.api_version.rsplit_once('/').map_or("", |(group, _)| group).to_owned()
        };
        let watched = sources.iter().map(|source| (group(source), source.kind.clone())).collect();
        *self.watched.write().unwrap_or_else(PoisonError::into_inner) = watched;
    }

    /// Reads the key if there is none yet. The fault says why there is none now.
    pub async fn retry(&self) -> Option<Fault> {
        if self.ready().is_ok() {
            return None;
        }
        let (field, read) = match &self.spec.key_from {
            Some(reference) => ("spec.redaction.keyFrom", key_of(reference).await),
            None => ("spec", key_in(&self.data).await),
        };
        let key = read.map_err(|why| {
            format!(
                "the redaction key can't be read: {why}. Until it is there, people and plugins without \
                 `documents: raw` get no document that holds secrets"
            )
        });
        let fault = key.as_ref().err().map(|message| Fault { field: field.into(), message: message.clone() });
        let key = key.map(|key| hmac::Key::new(hmac::HMAC_SHA256, &key));
        *self.key.write().unwrap_or_else(PoisonError::into_inner) = key;
        fault
    }

    /// Whether there is a key. The message says what to do.
    pub fn ready(&self) -> Result<(), String> {
        self.key().map(drop)
    }

    fn key(&self) -> Result<hmac::Key, String> {
        self.key.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn is_of(&self, spec: &RedactionSpec) -> bool {
        self.spec == *spec
    }

    pub fn rules(&self) -> Arc<Redactor> {
        self.rules.clone()
    }

    fn keyed(&self) -> Keyed {
        Keyed { rules: self.rules.clone(), key: self.key() }
    }

    /// The document as somebody may read it who may not see secrets. An Event hides those of its object, too.
    pub async fn shown(
        &self,
        documents: &dyn Documents,
        document: Bytes,
        party: &Party,
    ) -> Result<Bytes, JournalError> {
        self.shown_beside(documents, document, &mut HashMap::new(), party).await
    }

    /// The same of one of many documents. `objects`: what is known of the objects of the others.
    pub async fn shown_beside(
        &self,
        documents: &dyn Documents,
        document: Bytes,
        objects: &mut HashMap<ObjectRef, Arc<Secrets>>,
        party: &Party,
    ) -> Result<Bytes, JournalError> {
        let Some(about) = redact::about(&document) else { return Ok(self.redact(document, party).await?) };
        let secrets = match objects.get(&about) {
            Some(known) => known.clone(),
            None => {
                let secrets = Arc::new(self.of_object(documents, &about, party).await?);
                objects.insert(about, secrets.clone());
                secrets
            }
        };
        let (keyed, bytes) = (self.keyed(), document.len() + secrets.bytes());
        let shown = self.threads.run(party, bytes, move || keyed.redact_event(document, &secrets)).await;
        Ok(shown.map_err(RedactionError::from)??)
    }

    /// Of an object that is not watched, nothing is known, and what Events say of it stays.
    async fn of_object(
        &self,
        documents: &dyn Documents,
        about: &ObjectRef,
        party: &Party,
    ) -> Result<Secrets, JournalError> {
        if about.uid.is_empty() {
            return Ok(Secrets::unknown());
        }
        let newest = documents.newest_documents(about).await?;
        let kind = (about.group.clone(), about.kind.clone());
        let is_watched = || self.watched.read().unwrap_or_else(PoisonError::into_inner).contains(&kind);
        if newest.is_empty() && is_watched() {
            return Ok(Secrets::unknown());
        }
        let (keyed, bytes) = (self.keyed(), bytes_of(&newest));
        let secrets = self.threads.run(party, bytes, move || keyed.secrets(&newest)).await;
        Ok(secrets.map_err(RedactionError::from)??)
    }

    /// The document with a digest in the place of each secret of its own. Whoever gives away the text of an Event takes
    /// [`Self::shown`].
    pub async fn redact(&self, document: Bytes, party: &Party) -> Result<Bytes, RedactionError> {
        let keyed = self.keyed();
        self.threads.run(party, document.len(), move || keyed.redact(document)).await?
    }

    /// The configuration of a plugin with a digest in the place of each secret. Operators write it.
    pub fn settings(&self, settings: &Map<String, Value>) -> Result<Map<String, Value>, RedactionError> {
        self.keyed().redact_settings(settings)
    }

    /// The status of an object that is there, without the secrets that it quotes. A long document is looked at in the
    /// share of its namespace. If that takes too long, the status is shown without its texts, and with them once
    /// it is done: no list waits for what a tenant wrote.
    pub async fn current(&self, current: &Current) -> Result<Arc<Status>, RedactionError> {
        if !Secrets::may_stand_in(&current.status) {
            return Ok(current.status.clone());
        }
        let as_it_is = |shown: Option<Arc<Status>>| shown.unwrap_or_else(|| current.status.clone());
        let withheld = || as_it_is(Secrets::unknown().hidden_in(&current.status).map(Arc::new));
        if let Some(shown) = self.currents.get(current.seq) {
            return Ok(as_it_is(shown));
        }
        let namespace: Arc<str> = (*current.object.namespace).into();
        if self.slow.has(&namespace) {
            return Ok(withheld());
        }
        let (keyed, status, seq) = (self.keyed(), current.status.clone(), current.seq);
        let document = document::unpack(&current.packed).ok();
        let bytes = document.as_ref().map_or(0, Bytes::len);
        let kept = self.currents.clone();
        let hide = move || {
            let secrets = document.map_or_else(|| Ok(Secrets::unknown()), |it| keyed.secrets(&[it]))?;
            let shown = secrets.hidden_in(&status).map(Arc::new);
            // Also if nobody waits for it any more.
            kept.keep(seq, shown.clone());
            Ok::<_, RedactionError>(shown)
        };
        let party = Party::Namespace(namespace.clone());
        let hidden = self.threads.run(&party, bytes, hide);
        match tokio::time::timeout(PATIENCE, hidden).await {
            Ok(shown) => Ok(as_it_is(shown??)),
            Err(_) => {
                self.slow.note(namespace);
                Ok(withheld())
            }
        }
    }

    /// A state without the secrets that its statuses quote.
    pub async fn state(
        &self,
        documents: &dyn Documents,
        state: &Arc<State>,
        party: &Party,
    ) -> Result<Arc<State>, JournalError> {
        let may_quote = |status: &Arc<Status>| Secrets::may_stand_in(status);
        let previous = state.previous.as_ref().filter(|status| may_quote(status));
        if !may_quote(&state.status) && previous.is_none() {
            return Ok(state.clone());
        }
        if let Some(shown) = self.states.get(state.seq) {
            return Ok(shown.unwrap_or_else(|| state.clone()));
        }
        let own = documents.document(state.seq).await?.filter(|text| !text.is_empty());
        // The end of an object has no document of its own.
        let earlier = match previous.is_some() || own.is_none() {
            true => documents.document_before(state.seq).await?.filter(|text| !text.is_empty()),
            false => None,
        };
        // Retention may have taken what says their secrets.
        let is_known = (own.is_some() || earlier.is_some(), earlier.is_some());
        let known = Vec::from_iter(own.into_iter().chain(earlier));
        let (keyed, bytes, raw) = (self.keyed(), bytes_of(&known), state.clone());
        let kept = self.states.clone();
        let hide = move || {
            let shown = without_quotes(&raw, &keyed.secrets(&known)?, is_known);
            kept.keep(raw.seq, shown.clone());
            Ok(shown)
        };
        let shown: Result<_, RedactionError> =
            self.threads.run(party, bytes, hide).await.map_err(RedactionError::from)?;
        let shown = shown?;
        Ok(shown.unwrap_or_else(|| state.clone()))
    }
}

fn bytes_of(documents: &[Bytes]) -> usize {
    documents.iter().map(Bytes::len).sum()
}

/// None where it quotes none. `is_known`: whether the secrets are those of its status, and of the one before.
fn without_quotes(state: &State, secrets: &Secrets, is_known: (bool, bool)) -> Option<Arc<State>> {
    let hidden = |status: &Status, is_known: bool| match is_known {
        true => secrets.hidden_in(status),
        false => Secrets::unknown().hidden_in(status),
    };
    let status = hidden(&state.status, is_known.0).map(Arc::new);
    let previous = state.previous.as_ref().filter(|status| Secrets::may_stand_in(status));
    let before = previous.and_then(|status| hidden(status, is_known.1)).map(Arc::new);
    (status.is_some() || before.is_some()).then(|| {
        Arc::new(State {
            status: status.unwrap_or_else(|| state.status.clone()),
            previous: before.or_else(|| state.previous.clone()),
            ..state.clone()
        })
    })
}

async fn key_of(reference: &SecretRef) -> Result<Vec<u8>, String> {
    let secret = secrets::resolve(reference).await?;
    match secret.expose().len() >= KEY_BYTES {
        true => Ok(secret.expose().as_bytes().to_vec()),
        false => Err(format!("it is shorter than {KEY_BYTES} bytes: make one with `openssl rand -hex 32`")),
    }
}

async fn key_in(data: &Path) -> Result<Vec<u8>, String> {
    let path = data.join(FILE);
    let random =
        |key: &mut [u8]| SystemRandom::new().fill(key).map_err(|_| std::io::Error::other("no random bytes"));
    let asked = path.clone();
    let kept = files::within(&path, files::ANSWER, move || {
        std::fs::create_dir_all(asked.parent().unwrap_or(Path::new(".")))?;
        files::own_key(&asked, random)
    });
    let place = path.display();
    let (key, origin) = kept.await.map_err(|error| {
        format!("{place}: {error}. Move away what is there, or make it readable: without a file the controller makes a key")
    })?;
    match origin {
        Origin::Kept => {}
        Origin::Made => tracing::info!("the digests of secrets have a new key, in {place}"),
        Origin::MadeAnew => tracing::warn!(
            "{place} was damaged or open to others. The digests of secrets have a new key: the same secret has \
             another digest than before"
        ),
    }
    Ok(key.to_vec())
}

/// Documents for one that may not see secrets.
#[derive(Clone)]
pub struct Redacted {
    pub documents: Arc<dyn Documents>,
    pub redaction: Arc<Redaction>,
    pub party: Party,
}

impl Redacted {
    pub(crate) async fn shown(&self, document: Option<Bytes>) -> Result<Option<Bytes>, JournalError> {
        match document {
            Some(document) => self.redaction.shown(&*self.documents, document, &self.party).await.map(Some),
            None => Ok(None),
        }
    }
}

#[async_trait]
impl Documents for Redacted {
    async fn document(&self, seq: Seq) -> Result<Option<Bytes>, JournalError> {
        self.shown(self.documents.document(seq).await?).await
    }

    async fn document_before(&self, seq: Seq) -> Result<Option<Bytes>, JournalError> {
        self.shown(self.documents.document_before(seq).await?).await
    }

    async fn newest_documents(&self, object: &ObjectRef) -> Result<Vec<Bytes>, JournalError> {
        let mut shown = Vec::new();
        for document in self.documents.newest_documents(object).await? {
            shown.push(self.redaction.shown(&*self.documents, document, &self.party).await?);
        }
        Ok(shown)
    }
}

#[cfg(test)]
mod tests;
