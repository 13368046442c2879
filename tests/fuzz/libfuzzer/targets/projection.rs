#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| kubewitness_fuzz::projection::check(input));
