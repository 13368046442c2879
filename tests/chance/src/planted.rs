//! Faults that a test plants in what it tests, to see that its assertions find them.

use std::any::Any;

/// The message of a panic.
///
/// # Panics
///
/// Macros that panic give a text; anything else is no assertion.
pub fn panic_message(panic: &(dyn Any + Send)) -> String {
    let literal = || panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    panic.downcast_ref::<String>().cloned().or_else(literal).expect("a panic with a text")
}

/// Fails unless the test failed, and by one of these assertions.
///
/// # Panics
///
/// The fault was not found, or something else failed.
pub fn assert_fault_is_found(failure: Option<String>, assertions: &[&str]) {
    let failure = failure.expect("no order fails");
    assert!(assertions.iter().any(|part| failure.contains(part)), "another assertion fails: {failure}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(work: fn()) -> Option<String> {
        std::panic::catch_unwind(work).err().map(|panic| panic_message(&*panic))
    }

    #[test]
    fn a_fault_is_found_by_the_named_assertion_alone() {
        assert_fault_is_found(message(|| panic!("a state is lost")), &["is lost"]);
        let another = message(|| assert_fault_is_found(Some("out of bounds".into()), &["is lost"]));
        assert!(another.expect("it fails").contains("another assertion fails: out of bounds"));
        assert!(message(|| assert_fault_is_found(None, &["is lost"])).is_some());
    }
}
