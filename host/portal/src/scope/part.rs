//! A part of a list, and where the next part begins: the rows that a person may see of those that were read.

/// Rows that a person may see, up to a bound.
pub(crate) struct Part<T, C> {
    pub rows: Vec<T>,
    /// Behind this row there may be more.
    pub next: Option<C>,
}

impl<T, C> Default for Part<T, C> {
    fn default() -> Self {
        Self { rows: Vec::new(), next: None }
    }
}

/// Picks the rows of a part in their order.
pub(super) struct Picking<T, C> {
    limit: usize,
    part: Part<T, C>,
}

impl<T, C> Picking<T, C> {
    pub fn new(limit: usize) -> Self {
        Self { limit, part: Part::default() }
    }

    /// Whether the part ends before the next row.
    pub fn is_full(&self) -> bool {
        self.part.rows.len() >= self.limit
    }

    /// Goes past a row.
    pub fn pass(&mut self, place: C, row: T, is_seen: bool) {
        if is_seen {
            self.part.rows.push(row);
        }
        self.part.next = Some(place);
    }

    /// `all`: the list has no rows behind those that were passed.
    pub fn finish(self, all: bool) -> Part<T, C> {
        Part { next: self.part.next.filter(|_| !all), ..self.part }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_goes_on_behind_the_last_row_that_was_looked_at() {
        let pick = |limit, shown: &[(u64, bool)]| {
            let mut picking = Picking::new(limit);
            let mut passed = 0;
            for (place, is_seen) in shown {
                if picking.is_full() {
                    break;
                }
                picking.pass(*place, *place, *is_seen);
                passed += 1;
            }
            let part = picking.finish(passed == 4);
            (part.rows, part.next)
        };
        let rows = [(9, true), (7, false), (5, true), (2, false)];
        assert_eq!(pick(1, &rows), (vec![9], Some(9)));
        assert_eq!(pick(2, &rows), (vec![9, 5], Some(5)));
        assert_eq!(pick(3, &rows), (vec![9, 5], None));
        assert_eq!(pick(3, &rows[..3]), (vec![9, 5], Some(5)), "more may be there than was read");
        assert_eq!(pick(3, &[(9, false)]), (vec![], Some(9)));
    }
}
