//! A state for the tests of the commands. Each test says what matters to it.

use kubewitness_core::{Change, ObjectRef, Seq, State, StateId, Status, Version};

/// Of the Job `a/x` with the uid `u`, which runs.
pub fn state(seq: Seq, change: Change) -> State {
    let object = ObjectRef {
        group: "batch".into(),
        kind: "Job".into(),
        namespace: "a".into(),
        name: "x".into(),
        uid: "u".into(),
        ..ObjectRef::default()
    };
    let version = Version::new(&seq.to_string());
    State {
        id: StateId::of("jobs", 0, &object, change, &version, None),
        seq,
        source: "jobs".into(),
        epoch: 0,
        change,
        object: object.into(),
        owner: None,
        resource_version: version,
        status: Status { phase: "Running".into(), ..Status::default() }.into(),
        previous: None,
        observed_ms: 0,
        late: false,
    }
}
