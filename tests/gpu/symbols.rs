//! The stub libraries have the symbols that fabricgate loads, and no others.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use node::ffi::cuda::CudaLibrary;
use node::ffi::nccl::NcclLibrary;

use crate::stub::{Library, Machine, build};

/// The symbols that a source of fabricgate looks up: those between quotes in its list.
pub(crate) fn looked_up(path: &str) -> BTreeSet<String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    let source = fs::read_to_string(source).expect("a source");
    let list = source.split("symbols! {").nth(1).expect("a list of symbols");
    let list = list.split("\n}").next().expect("its end");
    list.lines()
        .filter_map(|line| line.split_once(" = \""))
        .map(|(_, rest)| rest.split('"').next().expect("a name").to_owned())
        .collect()
}

/// The symbols that a stub exports: those that its sources name as calls.
fn exported(folder: &str, prefix: &str) -> BTreeSet<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let source = fs::read_to_string(entry.expect("readable").path()).expect("a source");
        for line in source.lines() {
            let line = line.trim_start().trim_start_matches("pub unsafe extern \"C\" fn ");
            let Some((name, _)) = line.split_once('(') else { continue };
            if name.starts_with(prefix) && name.chars().all(|c| c.is_alphanumeric() || c == '_') {
                found.insert(name.to_owned());
            }
        }
    }
    found
}

#[test]
fn the_stub_of_the_driver_has_the_calls_that_are_looked_up_and_no_others() {
    let looked_up = looked_up("src/node/ffi/cuda.rs");
    assert!(40 < looked_up.len(), "the list is found: {looked_up:?}");
    assert_eq!(exported("tests/gpu/libcuda", "cu"), looked_up);
    let cuda = CudaLibrary::load(Some(&build(Library::Cuda, &[]))).expect("loads");
    assert_eq!(cuda.missing_symbols(), Vec::<&str>::new());
}

#[test]
fn the_stub_of_nccl_has_the_calls_that_are_looked_up_and_no_others() {
    let mut looked_up = looked_up("src/node/ffi/nccl.rs");
    // They return texts, so they are not in the list.
    looked_up.extend(["ncclGetErrorString", "ncclGetLastError"].map(str::to_owned));
    assert!(18 < looked_up.len(), "the list is found: {looked_up:?}");
    assert_eq!(exported("tests/gpu/libnccl", "nccl"), looked_up);
    let nccl = NcclLibrary::load(Some(&build(Library::Nccl, &[]))).expect("loads");
    assert_eq!(nccl.missing_symbols(), Vec::<&str>::new());
}

#[test]
fn an_older_driver_lacks_only_the_removed_calls() {
    let missing = ["cuDeviceGetUuid_v2", "cuMemCreate"];
    let folder = tempfile::tempdir().expect("a folder");
    let machine = Machine::of(1).without(Library::Cuda, &missing);
    let library = machine.driver(folder.path(), Library::Cuda);
    let cuda = CudaLibrary::load(Some(&library)).expect("loads");
    assert_eq!(cuda.missing_symbols(), missing);
}

#[test]
fn every_stub_builds() {
    for library in Library::all() {
        assert!(build(library, &[]).exists(), "{library:?}");
    }
}
