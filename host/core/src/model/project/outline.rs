//! Records where the members of an object, and their members, are. Status rules and indexes find them by name
//! without scanning the object again.

use super::{JsonScanner, ProjectError, RawString, ScanFlow};

/// The outline of one object. It is valid only with the bytes of that object, and can be reused for the next
/// one.
#[derive(Clone, Debug, Default)]
pub struct ObjectOutline {
    members: Vec<MemberOffsets>,
}

/// Offsets from the first byte of the object.
#[derive(Clone, Copy, Debug)]
struct MemberOffsets {
    /// Whether it belongs to the last top-level member.
    is_inner: bool,
    is_escaped: bool,
    key: (u32, u32),
    value: (u32, u32),
}

/// One member, as [`ObjectOutline::outlined_members`] yields it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OutlineMember<'a> {
    pub is_inner: bool,
    pub key: RawString<'a>,
    pub value: &'a [u8],
}

/// Notes the members of one member.
pub(super) struct MemberOutline<'o> {
    members: &'o mut Vec<MemberOffsets>,
    /// The offset of the object in the scanned bytes.
    base: usize,
}

impl ObjectOutline {
    /// Reads the outline of an unchecked object.
    pub fn of(object: &[u8]) -> Result<Self, ProjectError> {
        let mut outline = Self::default();
        outline.of_object(&mut JsonScanner::new(object), 0, |_, value, inner| inner.skip_recording(value))?;
        Ok(outline)
    }

    pub(super) fn clear(&mut self) {
        self.members.clear();
    }

    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Records an object's members, with offsets from `base`. `member` must consume the value and may record
    /// its members.
    pub(super) fn of_object<'a>(
        &mut self,
        object: &mut JsonScanner<'a>,
        base: usize,
        mut member: impl FnMut(
            RawString<'a>,
            &mut JsonScanner<'a>,
            &mut MemberOutline<'_>,
        ) -> Result<(), ProjectError>,
    ) -> Result<(), ProjectError> {
        self.members.clear();
        object.for_each_member(|key, value| {
            let place = self.members.len();
            let mut inner = MemberOutline { members: &mut self.members, base };
            let start = value.start();
            inner.push(false, key, start, start);
            member(key, value, &mut inner)?;
            self.members[place].value.1 = offset_u32(value.position() - base);
            Ok(ScanFlow::Next)
        })
    }

    /// The members in the order of the document. Each member of the object comes before its own members.
    pub(crate) fn outlined_members<'a>(&self, object: &'a [u8]) -> impl Iterator<Item = OutlineMember<'a>> {
        self.members.iter().map(move |member| {
            let cut = |(start, end): (u32, u32)| object.get(start as usize..end as usize).unwrap_or_default();
            OutlineMember {
                is_inner: member.is_inner,
                key: RawString::from_scanned(cut(member.key), member.is_escaped, member.key.0 as usize),
                value: cut(member.value),
            }
        })
    }
}

impl MemberOutline<'_> {
    /// Skips a value. If it is an object, its members are recorded.
    pub fn skip_recording(&mut self, value: &mut JsonScanner<'_>) -> Result<(), ProjectError> {
        if value.peek_byte() != b'{' {
            return value.skip_any_value();
        }
        value.for_each_member(|key, value| {
            self.record_member(key, value, JsonScanner::skip_any_value).map(|()| ScanFlow::Next)
        })
    }

    /// Records a member whose value `read` consumes.
    pub fn record_member<'a>(
        &mut self,
        key: RawString<'a>,
        value: &mut JsonScanner<'a>,
        read: impl FnOnce(&mut JsonScanner<'a>) -> Result<(), ProjectError>,
    ) -> Result<(), ProjectError> {
        let start = value.start();
        read(value)?;
        self.push(true, key, start, value.position());
        Ok(())
    }

    fn push(&mut self, is_inner: bool, key: RawString<'_>, start: usize, end: usize) {
        let (at, length, is_escaped) = key.place_in_text();
        let key = (offset_u32(at - self.base), offset_u32(at - self.base + length));
        let value = (offset_u32(start - self.base), offset_u32(end - self.base));
        self.members.push(MemberOffsets { is_inner, is_escaped, key, value });
    }
}

/// No object has four thousand million bytes. In a longer one, the members would read as empty.
fn offset_u32(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(u32::MAX)
}
