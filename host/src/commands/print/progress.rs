//! A bar on standard error during a long operation. Only a person at a terminal gets it; a file, a pipe or a
//! log does not. It is one line, and `print` already knows the terminal and its width, so no crate draws it.

use std::io::{self, IsTerminal, Write};
use std::pin::pin;
use std::time::Duration;

use crate::commands::print;

/// Shorter work needs no bar.
const FIRST: Duration = Duration::from_millis(500);
const EVERY: Duration = Duration::from_millis(200);
/// Characters between the brackets.
const BAR: u64 = 30;
/// Moves the cursor to the beginning of the line, and clears the rest.
const CLEAR: &str = "\r\x1b[K";

/// The unit that a bar counts.
#[derive(Clone, Copy)]
pub enum ProgressUnit {
    States,
    Bytes,
}

/// Does the work, and shows its progress: the number done and the total, which is 0 if unknown.
pub async fn with_progress<T>(
    what: &str,
    unit: ProgressUnit,
    now: impl Fn() -> (u64, u64),
    work: impl Future<Output = T>,
) -> T {
    if !is_seen() {
        return work.await;
    }
    let line = || {
        let (done, all) = now();
        progress_line(what, unit, done, all, print::width_of(&io::stderr()))
    };
    follow_work(line, work, draw_line).await
}

/// Redraws the line while the work runs, and clears it at the end.
async fn follow_work<T>(line: impl Fn() -> String, work: impl Future<Output = T>, draw: impl Fn(&str)) -> T {
    let mut work = pin!(work);
    let mut pause = FIRST;
    loop {
        tokio::select! {
            done = &mut work => {
                if pause == EVERY {
                    draw("");
                }
                return done;
            }
            () = tokio::time::sleep(pause) => {
                draw(&line());
                pause = EVERY;
            }
        }
    }
}

/// Whether standard error is a terminal that understands cursor control.
pub fn is_seen() -> bool {
    io::stderr().is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Draws one line in place of the previous one.
pub fn draw_line(line: &str) {
    let mut err = io::stderr().lock();
    // A bar that can't be drawn is no reason to stop the work.
    write!(err, "{CLEAR}{line}").and_then(|()| err.flush()).ok();
}

/// `verifying  [##########--------------------]  33 %  1000 of 3000 states`
pub fn progress_line(what: &str, unit: ProgressUnit, done: u64, all: u64, width: Option<usize>) -> String {
    let done = if all > 0 { done.min(all) } else { done };
    let (scale, unit) = match unit {
        ProgressUnit::States => (1, "states"),
        ProgressUnit::Bytes => (1024 * 1024, "MiB"),
    };
    let (shown, shown_all) = (done / scale, all / scale);
    // The last column stays free, because some terminals begin a new line there.
    let width = width.map_or(usize::MAX, |width| width.saturating_sub(1));
    if all == 0 {
        return format!("{what}  {shown} {unit}").chars().take(width).collect();
    }
    // 128 bits, for the bytes of a large file times a hundred.
    let of =
        |parts: u64| u64::try_from(u128::from(done) * u128::from(parts) / u128::from(all)).unwrap_or(parts);
    let figures = format!("{} %  {shown} of {shown_all} {unit}", of(100));
    let full = of(BAR) as usize;
    let bar = "#".repeat(full) + &"-".repeat(BAR as usize - full);
    let whole = format!("{what}  [{bar}]  {figures}");
    match whole.len() <= width {
        true => whole,
        // The figures are more informative than the bar.
        false => format!("{what}  {figures}").chars().take(width).collect(),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn a_bar_says_how_far_it_is_as_well_as_is_known() {
        let mut golden = String::new();
        for (what, unit, done, all, width) in [
            ("verifying", ProgressUnit::States, 0, 0, None),
            ("verifying", ProgressUnit::States, 512, 0, None),
            ("verifying", ProgressUnit::States, 0, 3000, None),
            ("verifying", ProgressUnit::States, 1000, 3000, None),
            // The controller continues meanwhile.
            ("exporting", ProgressUnit::States, 3001, 3000, None),
            ("importing", ProgressUnit::Bytes, 5 << 30, 20 << 30, None),
            ("importing", ProgressUnit::Bytes, u64::MAX, u64::MAX, None),
            ("replaying", ProgressUnit::States, 7, 9, Some(40)),
            ("replaying", ProgressUnit::States, 7, 9, Some(20)),
        ] {
            golden.push_str(&progress_line(what, unit, done, all, width));
            golden.push('\n');
        }
        assert_eq!(golden, include_str!("../golden/progress.txt"));
    }

    #[tokio::test]
    async fn what_takes_long_is_drawn_until_it_is_over_and_then_removed() {
        let drawn = RefCell::new(Vec::new());
        let draw = |line: &str| drawn.borrow_mut().push(line.to_owned());
        let line = || format!("line {}", drawn.borrow().len());
        let work = async {
            while drawn.borrow().len() < 2 {
                tokio::time::sleep(EVERY).await;
            }
            7
        };
        assert_eq!(follow_work(line, work, draw).await, 7);
        let lines = drawn.borrow();
        assert_eq!(lines[..2], ["line 0", "line 1"]);
        assert_eq!(lines.last().map(String::as_str), Some(""), "{lines:?}");
    }

    #[tokio::test]
    async fn what_is_over_at_once_is_not_drawn() {
        let draw = |line: &str| panic!("it drew {line}");
        assert_eq!(follow_work(String::new, async { 7 }, draw).await, 7);
        let shown = with_progress("x", ProgressUnit::States, || (1, 2), async { 7 }).await;
        assert_eq!(shown, 7);
    }
}
