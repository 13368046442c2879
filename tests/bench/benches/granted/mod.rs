//! What the host lends to the grants of a plugin, where it is not what is measured.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use kubewitness_capability::Backing;
use kubewitness_core::clock::SystemClock;
use kubewitness_core::ports::{
    Current, Documents, JournalError, Kept, KvWrite, Lister, Notes, SelectError, Selected, Selection,
};
use kubewitness_core::views::Counts;
use kubewitness_core::{ObjectRef, Seq};

pub fn backing() -> Backing {
    Backing {
        documents: Arc::new(Nothing),
        lister: Arc::new(Nothing),
        clock: Arc::new(SystemClock::default()),
        uses: Arc::default(),
        kv: Vec::new(),
        told: Default::default(),
        notes: Arc::new(Nothing),
        version: "bench".into(),
        cursor: 0,
        newest: 0,
    }
}

/// Stands in for what is not measured, and for a journal that notes nothing.
pub struct Nothing;

#[async_trait]
impl Notes for Nothing {
    async fn note(&self, _: &str, _: Vec<KvWrite>, _: Kept) -> Result<(), JournalError> {
        Ok(())
    }

    fn note_later(&self, _: &str, _: Vec<KvWrite>) {}
}

#[async_trait]
impl Documents for Nothing {
    async fn document(&self, _: Seq) -> Result<Option<Bytes>, JournalError> {
        Ok(None)
    }

    async fn document_before(&self, _: Seq) -> Result<Option<Bytes>, JournalError> {
        Ok(None)
    }

    async fn newest_documents(&self, _: &ObjectRef) -> Result<Vec<Bytes>, JournalError> {
        Ok(Vec::new())
    }
}

#[async_trait]
impl Lister for Nothing {
    fn get(&self, _: &str, _: &str, _: &str) -> Result<Option<Current>, SelectError> {
        Ok(None)
    }

    fn select(&self, _: &str, _: &Selection) -> Result<Selected, SelectError> {
        Ok(Selected::default())
    }

    fn tally(&self, _: &str, _: &Selection, _: &mut Counts) -> Result<(), SelectError> {
        Ok(())
    }

    fn count(&self, _: &str) -> usize {
        0
    }

    async fn shows(&self, _: &str, _: Seq) {}
}
