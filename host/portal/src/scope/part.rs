//! A part of a list, and where the next part begins: the rows that a person may see of those that were read.

use crate::serve::ReadingTurn;

/// Rows that a person may see, up to a bound.
pub(crate) struct VisiblePart<T, C> {
    pub rows: Vec<T>,
    /// The turn in which they were read.
    pub turn: Option<ReadingTurn>,
    /// Behind this row there is more that the person may see, or more than was read.
    pub next: Option<C>,
}

impl<T, C> Default for VisiblePart<T, C> {
    fn default() -> Self {
        Self { rows: Vec::new(), turn: None, next: None }
    }
}

/// Picks the rows of a part in their order.
pub(super) struct PartPicker<T, C> {
    limit: usize,
    rows: Vec<T>,
    /// The place of the last of these rows.
    last: Option<C>,
    /// The place of the last row that was passed, where that one is hidden.
    hidden: Option<C>,
    goes_on: bool,
}

impl<T, C> PartPicker<T, C> {
    pub fn new(limit: usize) -> Self {
        Self { limit, rows: Vec::new(), last: None, hidden: None, goes_on: false }
    }

    /// The person may see a row of the next part, so no other needs to be passed.
    pub fn goes_on(&self) -> bool {
        self.goes_on
    }

    /// Goes past a row.
    pub fn pass(&mut self, place: C, row: T, is_seen: bool) {
        match is_seen {
            true if self.rows.len() >= self.limit => self.goes_on = true,
            true => {
                self.rows.push(row);
                (self.last, self.hidden) = (Some(place), None);
            }
            false => self.hidden = Some(place),
        }
    }

    /// `all`: the list has no rows behind those that were passed. What is hidden behind the last row makes no next part:
    /// it would tell that it is there. Of the turn stays what the rows of the part need.
    pub fn finish(self, all: bool, mut turn: Option<ReadingTurn>) -> VisiblePart<T, C> {
        if let Some(turn) = &mut turn {
            turn.correct(self.rows.len());
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
            picking.pass(*place, *place, *is_seen);
            if picking.goes_on() {
                break;
            }
        }
        let part = picking.finish(all, None);
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
