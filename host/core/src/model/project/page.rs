//! Splits a page of a list into its objects.

use std::borrow::Cow;

use super::{JsonScanner, ProjectError, ScanFlow, is_null, take_text, utf8};

/// One page of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListPage<'a> {
    pub resource_version: Cow<'a, str>,
    /// Empty on the last page.
    pub continue_token: Cow<'a, str>,
    /// The number of objects after this page, if the server says so.
    pub remaining: Option<u64>,
    pub api_version: Cow<'a, str>,
    /// The kind of the list, such as `JobList`.
    pub kind: Cow<'a, str>,
    /// The exact bytes of each object.
    pub items: Vec<&'a [u8]>,
}

/// Splits one page of a list. The whole page is checked, as [`frame`] does with a line.
pub fn list_page(bytes: &[u8]) -> Result<ListPage<'_>, ProjectError> {
    let mut page = ListPage::default();
    let mut has_items = false;
    let mut scanner = JsonScanner::of_text(utf8(bytes)?);
    scanner.members(|key, value| {
        match () {
            () if key.is(b"kind") => take_text(&mut page.kind, value)?,
            () if key.is(b"apiVersion") => take_text(&mut page.api_version, value)?,
            () if key.is(b"metadata") => list_metadata(value, &mut page)?,
            () if key.is(b"items") && !has_items => {
                has_items = true;
                if !is_null(value)? {
                    value.elements(|value| {
                        page.items.push(value.element()?);
                        Ok(())
                    })?;
                }
            }
            () => value.skip()?,
        }
        Ok(ScanFlow::Next)
    })?;
    scanner.end()?;
    match (page.resource_version.is_empty(), has_items) {
        (true, _) => Err(ProjectError::Missing("metadata.resourceVersion")),
        (_, false) => Err(ProjectError::Missing("items")),
        _ => Ok(page),
    }
}

fn list_metadata<'a>(value: &mut JsonScanner<'a>, page: &mut ListPage<'a>) -> Result<(), ProjectError> {
    if is_null(value)? {
        return Ok(());
    }
    value.members(|key, value| {
        match () {
            () if key.is(b"resourceVersion") => take_text(&mut page.resource_version, value)?,
            () if key.is(b"continue") => take_text(&mut page.continue_token, value)?,
            () if key.is(b"remainingItemCount") => {
                page.remaining = std::str::from_utf8(value.value()?).ok().and_then(|text| text.parse().ok());
            }
            () => value.skip()?,
        }
        Ok(ScanFlow::Next)
    })
}
