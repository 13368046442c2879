use std::path::PathBuf;
use std::time::{Duration, Instant};

use kubewitness_core::config;

use super::*;

/// Requests code from the stand-in, whose behaviour the given memory selects.
async fn answer(what: u64, limits: ComponentsSpec) -> Result<Vec<u8>, NoCode> {
    let program = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("testdata/compiler.sh");
    let limits = ComponentsSpec { compile_memory: Bytes(what), ..limits };
    let mut code = Vec::new();
    let keep = |part: &[u8]| {
        code.extend_from_slice(part);
        Ok(())
    };
    // The input is larger than a pipe's buffer: a process that does not read it is not waited for.
    compile_in_process(&program, vec![7; 1 << 20].into(), &limits, || {}, keep).await.map(|()| code)
}

/// The memory for which the stand-in is killed as if by the kernel.
const KILLED: u64 = 7;

async fn refused(what: u64, limits: ComponentsSpec) -> String {
    match answer(what, limits).await {
        Err(NoCode::Refused(why)) => {
            assert_ne!(what, KILLED);
            why
        }
        Err(NoCode::Killed(why)) => {
            assert_eq!(what, KILLED, "{why}");
            why
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn the_process_has_no_environment_and_is_told_its_bounds() {
    let limits =
        ComponentsSpec { compile_cpu: config::Duration(Duration::from_millis(500)), ..Default::default() };
    let output = String::from_utf8(answer(1, limits).await.unwrap()).unwrap();
    let lines: Vec<_> = output.lines().collect();
    // The shell itself sets these three.
    let set = |line: &&&str| !["PWD=", "OLDPWD=", "SHLVL=", "_="].iter().any(|own| line.starts_with(own));
    let rest: Vec<_> = lines.iter().filter(set).collect();
    assert_eq!(rest, [&"/", &"compile-component --memory 1 --cpu 2"], "{output}");
}

#[tokio::test]
async fn a_process_that_does_not_end_in_its_time_is_ended() {
    let limits =
        ComponentsSpec { compile_time: config::Duration(Duration::from_millis(200)), ..Default::default() };
    let since = Instant::now();
    let why = refused(2, limits).await;
    assert_eq!(
        why,
        "compiling the component takes too much time: the limit is 200ms (`spec.limits.components.compileTime` of the \
         host's settings)"
    );
    assert!(since.elapsed() < Duration::from_secs(30), "the process would sleep for a minute");
}

#[tokio::test]
async fn code_without_end_is_taken_up_to_its_bound() {
    let limits = ComponentsSpec { code: Bytes(3 << 20), ..Default::default() };
    let why = refused(3, limits).await;
    assert!(why.contains("too much code: the limit is 3Mi (`spec.limits.components.code`"), "{why}");
}

#[tokio::test]
async fn how_a_process_ended_is_told_in_plain_words_with_the_setting_that_raises_the_bound() {
    for (what, words) in [
        (4, "the component can't be compiled: the type is wrong"),
        (5, "too much memory: the limit is 5 (`spec.limits.components.compileMemory`"),
        (6, "too much processor time: the limit is 60s (`spec.limits.components.compileCpu`"),
        (KILLED, "killed from outside, most likely since the machine or the container has no memory left"),
        (11, "the compiler has a fault that the component meets: unreachable code"),
        (12, "the process that compiled the component ended with signal: 7 (SIGBUS)"),
        (8, "nested so deeply that compiling it needs more stack"),
    ] {
        let why = refused(what, ComponentsSpec::default()).await;
        assert!(why.contains(words), "{why}");
    }
}

#[tokio::test]
async fn a_process_that_fails_without_a_word_of_the_component_says_nothing_about_it() {
    let error = answer(9, ComponentsSpec::default()).await.unwrap_err();
    assert!(matches!(&error, NoCode::Broken(why) if why.contains("exit status: 1")), "{error:?}");
    let limits = ComponentsSpec::default();
    let missing =
        compile_in_process(Path::new("/nonexistent"), vec![].into(), &limits, || {}, |_| Ok(())).await;
    assert!(matches!(missing, Err(NoCode::Broken(why)) if why.contains("starting")));
}

#[tokio::test]
async fn what_is_said_is_kept_up_to_its_bound_and_holds_nobody_up() {
    assert_eq!(answer(10, ComponentsSpec::default()).await.unwrap(), b"code");
    let line = read_error_output(&b"a\nb"[..]).await.unwrap();
    assert_eq!(line, "a b");
    let endless = vec![b'e'; 100_000];
    assert_eq!(read_error_output(&endless[..]).await.unwrap().len(), ERROR_BYTES);
}
