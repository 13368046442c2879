//! Splits a page of a list into its objects.

use std::borrow::Cow;

use super::{JsonScanner, ProjectError, ScanFlow, check_utf8, is_null, take_text};

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

/// Splits one page of a list. The whole page is checked, as [`split_frame`] does with a line.
pub fn list_page(bytes: &[u8]) -> Result<ListPage<'_>, ProjectError> {
    let mut page = ListPage::default();
    let mut has_items = false;
    let mut scanner = JsonScanner::of_text(check_utf8(bytes)?);
    scanner.for_each_member(|key, value| {
        match () {
            () if key.equals_bytes(b"kind") => take_text(&mut page.kind, value)?,
            () if key.equals_bytes(b"apiVersion") => take_text(&mut page.api_version, value)?,
            () if key.equals_bytes(b"metadata") => list_metadata(value, &mut page)?,
            () if key.equals_bytes(b"items") && !has_items => {
                has_items = true;
                if !is_null(value)? {
                    value.for_each_element(|value| {
                        page.items.push(value.take_element()?);
                        Ok(())
                    })?;
                }
            }
            () => value.skip_any_value()?,
        }
        Ok(ScanFlow::Next)
    })?;
    scanner.expect_end()?;
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
    value.for_each_member(|key, value| {
        match () {
            () if key.equals_bytes(b"resourceVersion") => take_text(&mut page.resource_version, value)?,
            () if key.equals_bytes(b"continue") => take_text(&mut page.continue_token, value)?,
            () if key.equals_bytes(b"remainingItemCount") => {
                page.remaining =
                    std::str::from_utf8(value.take_value_bytes()?).ok().and_then(|text| text.parse().ok());
            }
            () => value.skip_any_value()?,
        }
        Ok(ScanFlow::Next)
    })
}
