//! Removes secrets from documents before a plugin or a person gets them. `core` finds them; this module adds
//! the key of the digests.
//!
//! Searching takes time in proportion to a document, and a tenant may write long ones. So long documents are
//! redacted on separate threads, of which each party has a share; nobody else waits for them. This module
//! decides neither what is secret nor who may see it.

mod cache;
mod keyed;
mod quoting;
mod threads;
mod time_limit;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use async_trait::async_trait;
use bytes::Bytes;
use futures::future::try_join_all;
use kubewitness_core::config::{HostSpec, ManifestFault, RedactionSpec, SecretRef, SourceSpec};
use kubewitness_core::files::{self, KEY_BYTES, KeyOrigin};
use kubewitness_core::ports::{DocumentReader, JournalError, PartyShares};
use kubewitness_core::redact::{self, RedactionRules, SecretDigests, WithheldDocument};
use kubewitness_core::{ObjectRef, Seq, State, Status};
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use serde_json::{Map, Value};
use thiserror::Error;

use self::cache::{CachedDocument, KnownRedactions};
use self::keyed::KeyedMap;
use self::threads::RedactionThreads;
pub use self::threads::ThreadParty;
pub use self::time_limit::AnswerPatience;
use self::time_limit::SlowNamespaces;
use crate::secrets::{self, SecretError};

/// In the data folder, if the settings name no key.
const FILE: &str = "redaction.key";
/// The most documents in memory for one party, or of one object. Further requests of a party wait for its
/// earlier ones.
const TURNS: usize = 4;

/// Why a document can't be shown without secrets.
#[derive(Debug, Error)]
pub enum RedactionError {
    #[error(transparent)]
    Withheld(#[from] WithheldDocument),
    /// The key is missing now. The controller tries again by itself.
    #[error(transparent)]
    Key(#[from] RedactionKeyError),
}

/// Why the key of the digests is missing.
#[derive(Clone, Debug, Error)]
pub enum RedactionKeyError {
    #[error("the redaction key was not read yet")]
    Unread,
    #[error(
        "the redaction key can't be read: {0}. Until it is there, people and plugins without `documents: raw` get no \
         document that holds secrets"
    )]
    Unreadable(#[source] Arc<KeyReadError>),
}

#[derive(Debug, Error)]
pub enum KeyReadError {
    #[error(transparent)]
    Secret(#[from] SecretError),
    #[error("it is shorter than {KEY_BYTES} bytes: make one with `openssl rand -hex 32`")]
    TooShort,
    #[error(
        "{}: {source}. Move away what is there, or make it readable: without a file the controller makes a key",
        path.display()
    )]
    File { path: PathBuf, source: io::Error },
}

impl From<RedactionError> for JournalError {
    fn from(error: RedactionError) -> Self {
        match error {
            RedactionError::Withheld(withheld) => Self::Invalid(withheld.to_string()),
            RedactionError::Key(error) => Self::Unavailable(error.to_string()),
        }
    }
}

/// The rules of the host's settings, and the key of the digests.
///
/// An unreadable key affects only readers who may not see secrets.
pub struct SecretRedaction {
    rules: Arc<RedactionRules>,
    spec: RedactionSpec,
    data: PathBuf,
    key: RwLock<Result<hmac::Key, RedactionKeyError>>,
    /// Group and kind of the objects that the journal has if they exist.
    watched: RwLock<BTreeSet<(String, String)>>,
    currents: CachedDocument<Seq, Option<Arc<Status>>>,
    states: CachedDocument<Seq, Option<Arc<State>>>,
    /// Secrets by the newest states of the object whose documents contain them.
    objects: CachedDocument<Vec<Seq>, Arc<SecretDigests>>,
    /// Documents without their own secrets. Events are not among them: their objects' secrets change.
    redacted: KnownRedactions,
    slow: SlowNamespaces,
    /// The shares of readers of documents.
    turns: PartyShares<ThreadParty>,
    /// The shares for reading objects whose secrets may be quoted. A reader of an Event has a share of the
    /// other kind already.
    object_turns: PartyShares<ThreadParty>,
    threads: RedactionThreads,
}

impl SecretRedaction {
    pub async fn open(host: &HostSpec, data: &Path) -> Result<Self, Vec<ManifestFault>> {
        let redaction = Self {
            rules: Arc::new(host.compile_redaction_rules()?),
            spec: host.redaction.clone(),
            data: data.to_owned(),
            key: RwLock::new(Err(RedactionKeyError::Unread)),
            watched: RwLock::default(),
            currents: CachedDocument::default(),
            states: CachedDocument::default(),
            objects: CachedDocument::default(),
            redacted: KnownRedactions::default(),
            turns: PartyShares::new(TURNS),
            object_turns: PartyShares::new(TURNS),
            slow: SlowNamespaces::default(),
            threads: RedactionThreads::default(),
        };
        redaction.set_watched(&host.sources);
        redaction.retry_key().await;
        Ok(redaction)
    }

    /// Sets the watched kinds. An Event about an object of such a kind that was not seen yet may quote
    /// unknown secrets.
    pub fn set_watched(&self, sources: &[SourceSpec]) {
        let group = |source: &SourceSpec| {
            source.api_version.rsplit_once('/').map_or("", |(group, _)| group).to_owned()
        };
        let watched = sources.iter().map(|source| (group(source), source.kind.clone())).collect();
        *self.watched.write().unwrap_or_else(PoisonError::into_inner) = watched;
    }

    /// Reads the key if it is missing. Returns the reason if it still is.
    pub async fn retry_key(&self) -> Option<ManifestFault> {
        if self.check_ready().is_ok() {
            return None;
        }
        let (field, read) = match &self.spec.key_from {
            Some(reference) => ("spec.redaction.keyFrom", key_of(reference).await),
            None => ("spec", key_in(&self.data).await),
        };
        let key = read.map_err(|error| RedactionKeyError::Unreadable(error.into()));
        let fault = key.as_ref().err();
        let fault = fault.map(|error| ManifestFault { field: field.into(), message: error.to_string() });
        let key = key.map(|key| hmac::Key::new(hmac::HMAC_SHA256, &key));
        *self.key.write().unwrap_or_else(PoisonError::into_inner) = key;
        fault
    }

    /// Whether the key is loaded. The message has advice.
    pub fn check_ready(&self) -> Result<(), RedactionKeyError> {
        self.key().map(drop)
    }

    fn key(&self) -> Result<hmac::Key, RedactionKeyError> {
        self.key.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn is_of(&self, spec: &RedactionSpec) -> bool {
        self.spec == *spec
    }

    pub fn redaction_rules(&self) -> Arc<RedactionRules> {
        self.rules.clone()
    }

    fn keyed_rules(&self) -> KeyedMap {
        KeyedMap { rules: self.rules.clone(), key: self.key() }
    }

    /// A document without secrets. An Event also hides those of its object. It is read once the party has a
    /// turn: waiting requests have nothing in memory.
    pub async fn read(
        &self,
        documents: &dyn DocumentReader,
        reading: impl Future<Output = Result<Option<Bytes>, JournalError>>,
        party: &ThreadParty,
    ) -> Result<Option<Bytes>, JournalError> {
        let turn = self.turns.take(party).await.map_err(quoting::closed_error)?;
        let Some(document) = reading.await? else { return Ok(None) };
        if let Some(shown) = self.redacted.find(&document) {
            return Ok(Some(shown));
        }
        let patience = &mut AnswerPatience::of_a_request();
        if redact::event_subject(&document).is_some() {
            return self
                .redact_event(documents, document, &mut HashMap::new(), party, patience)
                .await
                .map(Some);
        }
        let (keyed, raw) = (self.keyed_rules(), document.clone());
        let redact = move || {
            let _turn = turn;
            keyed.redact_document(raw)
        };
        let shown = self.threads.run(party, document.len(), redact).await.map_err(RedactionError::from)??;
        self.redacted.keep(document, shown.clone());
        Ok(Some(shown))
    }

    /// An Event without the secrets of its object. `objects` has what is known of other objects. If finding
    /// them out takes too long, its text is withheld.
    pub async fn redact_event(
        &self,
        documents: &dyn DocumentReader,
        event: Bytes,
        objects: &mut HashMap<ObjectRef, Arc<SecretDigests>>,
        party: &ThreadParty,
        patience: &mut AnswerPatience,
    ) -> Result<Bytes, JournalError> {
        let Some(about) = redact::event_subject(&event) else {
            return Ok(self.redact_document(event, party).await?);
        };
        let unknown = || Arc::new(SecretDigests::hide_all());
        let secrets = match objects.get(&about) {
            Some(known) => known.clone(),
            None => {
                let found = self.of_object(documents, &about, party, patience).await?;
                let secrets = found.unwrap_or_else(unknown);
                objects.insert(about, secrets.clone());
                secrets
            }
        };
        let redact = |secrets: Arc<SecretDigests>| {
            let (keyed, event, bytes) =
                (self.keyed_rules(), event.clone(), event.len() + secrets.searched_bytes());
            self.threads.run(party, bytes, move || keyed.redact_event(event, &secrets))
        };
        let shown = match patience.wait_for(redact(secrets)).await {
            Some(shown) => shown,
            None => redact(unknown()).await,
        };
        Ok(shown.map_err(RedactionError::from)??)
    }

    /// Finds the secrets of the objects that these Events are about, a few at the same time: one after another, the
    /// store's answers for a page of Events add up to seconds on a busy machine.
    pub async fn find_objects(
        &self,
        documents: &dyn DocumentReader,
        events: impl Iterator<Item = &Bytes>,
        objects: &mut HashMap<ObjectRef, Arc<SecretDigests>>,
        party: &ThreadParty,
        patience: &mut AnswerPatience,
    ) -> Result<(), JournalError> {
        let about: HashSet<_> = events.filter_map(|event| redact::event_subject(event)).collect();
        let about: Vec<_> = about.into_iter().filter(|object| !objects.contains_key(object)).collect();
        for part in about.chunks(TURNS) {
            let mut copies = vec![patience.clone(); part.len()];
            let searches = part.iter().zip(&mut copies);
            let searches =
                searches.map(|(object, patience)| self.of_object(documents, object, party, patience));
            let found = try_join_all(searches).await?;
            patience.spend_longest_of(&copies);
            let secrets =
                found.into_iter().map(|found| found.unwrap_or_else(|| Arc::new(SecretDigests::hide_all())));
            objects.extend(part.iter().cloned().zip(secrets));
        }
        Ok(())
    }

    /// The document with each of its own secrets replaced by a digest. To show the text of an Event, use
    /// [`Self::redact_event`].
    pub async fn redact_document(
        &self,
        document: Bytes,
        party: &ThreadParty,
    ) -> Result<Bytes, RedactionError> {
        let keyed = self.keyed_rules();
        self.threads.run(party, document.len(), move || keyed.redact_document(document)).await?
    }

    /// The configuration of a plugin, as operators write it, with a digest in place of each secret.
    pub fn redact_settings(
        &self,
        settings: &Map<String, Value>,
    ) -> Result<Map<String, Value>, RedactionError> {
        self.keyed_rules().redact_settings(settings)
    }
}

async fn key_of(reference: &SecretRef) -> Result<Vec<u8>, KeyReadError> {
    let secret = secrets::resolve_secret(reference).await?;
    match secret.expose_secret().len() >= KEY_BYTES {
        true => Ok(secret.expose_secret().as_bytes().to_vec()),
        false => Err(KeyReadError::TooShort),
    }
}

async fn key_in(data: &Path) -> Result<Vec<u8>, KeyReadError> {
    let path = data.join(FILE);
    let random =
        |key: &mut [u8]| SystemRandom::new().fill(key).map_err(|_| std::io::Error::other("no random bytes"));
    let asked = path.clone();
    let kept = files::run_within_limit(&path, files::ANSWER, move || {
        std::fs::create_dir_all(asked.parent().unwrap_or(Path::new(".")))?;
        files::own_key(&asked, random)
    });
    let place = path.display();
    let (key, origin) = kept.await.map_err(|source| KeyReadError::File { path: path.clone(), source })?;
    match origin {
        KeyOrigin::Kept => {}
        KeyOrigin::Made => tracing::info!("the digests of secrets have a new key, in {place}"),
        KeyOrigin::MadeAnew => tracing::warn!(
            "{place} was damaged or open to others. The digests of secrets have a new key: the same secret has \
             another digest than before"
        ),
    }
    Ok(key.to_vec())
}

/// Documents for a reader who may not see secrets.
#[derive(Clone)]
pub struct RedactedDocuments {
    pub documents: Arc<dyn DocumentReader>,
    pub redaction: Arc<SecretRedaction>,
    pub party: ThreadParty,
}

impl RedactedDocuments {
    pub(crate) async fn redacted_document(
        &self,
        reading: impl Future<Output = Result<Option<Bytes>, JournalError>>,
    ) -> Result<Option<Bytes>, JournalError> {
        self.redaction.read(&*self.documents, reading, &self.party).await
    }
}

#[async_trait]
impl DocumentReader for RedactedDocuments {
    async fn document_at(&self, seq: Seq) -> Result<Option<Bytes>, JournalError> {
        self.redacted_document(self.documents.document_at(seq)).await
    }

    async fn document_before(&self, seq: Seq) -> Result<Option<Bytes>, JournalError> {
        self.redacted_document(self.documents.document_before(seq)).await
    }

    async fn newest_of(&self, object: &ObjectRef) -> Result<Vec<Seq>, JournalError> {
        self.documents.newest_of(object).await
    }
}

#[cfg(test)]
mod tests;
