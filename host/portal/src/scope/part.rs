//! A part of a list, and the start of the next one: the visible rows among those that were read.

use crate::serve::ReadingTurn;

/// Rows that a person may see, up to a limit.
pub(crate) struct VisiblePart<T, C> {
    pub rows: Vec<T>,
    /// The turn in which they were read.
    pub turn: Option<ReadingTurn>,
    /// Set if more visible rows, or more than were read, come after this row.
    pub next: Option<C>,
}

impl<T, C> Default for VisiblePart<T, C> {
    fn default() -> Self {
        Self { rows: Vec::new(), turn: None, next: None }
    }
}

/// Selects the rows of a part, in order.
pub(super) struct PartPicker<T, C> {
    limit: usize,
    rows: Vec<T>,
    /// The place of the last selected row.
    last: Option<C>,
    /// The position of the last row that was read, if that row is hidden.
    hidden: Option<C>,
    goes_on: bool,
}

impl<T, C> PartPicker<T, C> {
    pub fn new(limit: usize) -> Self {
        Self { limit, rows: Vec::new(), last: None, hidden: None, goes_on: false }
    }

    /// Whether a visible row of the next part was found, so that no further row has to be examined.
    pub fn has_next_part(&self) -> bool {
        self.goes_on
    }

    /// Handles one row.
    pub fn pick_row(&mut self, place: C, row: T, is_seen: bool) {
        match is_seen {
            true if self.rows.len() >= self.limit => self.goes_on = true,
            true => {
                self.rows.push(row);
                (self.last, self.hidden) = (Some(place), None);
            }
            false => self.hidden = Some(place),
        }
    }

    /// `all` is set if the list has no further rows. A hidden row after the last visible one makes no next
    /// part, because that would reveal it. The turn keeps only the room that the part's rows need.
    pub fn into_part(self, all: bool, mut turn: Option<ReadingTurn>) -> VisiblePart<T, C> {
        if let Some(turn) = &mut turn {
            turn.give_back_unneeded(self.rows.len());
        }
        let next = match () {
            () if self.goes_on => self.last,
            () if all => None,
            () => self.hidden.or(self.last),
        };
        VisiblePart { rows: self.rows, turn, next }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pick(limit: usize, passed: &[(u64, bool)], all: bool) -> (Vec<u64>, Option<u64>) {
        let mut picking = PartPicker::new(limit);
        for (place, is_seen) in passed {
            picking.pick_row(*place, *place, *is_seen);
            if picking.has_next_part() {
                break;
            }
        }
        let part = picking.into_part(all, None);
        (part.rows, part.next)
    }

    #[test]
    fn a_part_goes_on_behind_its_last_row_where_another_one_may_be_seen() {
        let rows = [(9, true), (7, false), (5, true), (2, false)];
        assert_eq!(pick(1, &rows, true), (vec![9], Some(9)));
        assert_eq!(pick(2, &rows, true), (vec![9, 5], None), "what is hidden is no next part");
        assert_eq!(pick(3, &rows, true), (vec![9, 5], None));
    }

    #[test]
    fn where_more_may_be_there_than_was_read_the_next_part_begins_behind_what_was_read() {
        let rows = [(9, true), (7, false), (5, true)];
        assert_eq!(pick(3, &rows, false), (vec![9, 5], Some(5)));
        assert_eq!(pick(1, &rows[..2], false), (vec![9], Some(7)));
        assert_eq!(pick(3, &[(9, false)], false), (vec![], Some(9)));
    }
}
