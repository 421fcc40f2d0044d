//! Our loader's calls, each of them, against a driver of our own: what they give
//! and what they refuse. The numbers are the simulated machine's.

use fabricgate::ffi::cuda::Context;
use fabricgate::ffi::cuda::Cuda;
use fabricgate::ffi::cuda::Device;
use fabricgate::ffi::cuda::Stream;

use crate::stub::Library;
use crate::stub::Machine;

/// A driver of this machine, and the folder it lives in.
fn driver(machine: &Machine) -> (tempfile::TempDir, Cuda) {
    let folder = tempfile::tempdir().expect("a folder");
    let cuda = Cuda::load(Some(&machine.driver(folder.path(), Library::Cuda))).expect("loads");
    (folder, cuda)
}

/// The same, and its GPUs, each with a context and a stream.
fn begun(machine: &Machine) -> (tempfile::TempDir, Cuda, Vec<(Device, Context, Stream)>) {
    let (folder, cuda) = driver(machine);
    cuda.init().expect("begins");
    let gpus = cuda.devices().expect("counted").into_iter().map(|device| {
        let context = cuda.retain(device).expect("a context");
        cuda.enter(context).expect("entered");
        (device, context, cuda.stream().expect("a stream"))
    });
    let gpus = gpus.collect();
    (folder, cuda, gpus)
}

/// How much a test copies: 4 MiB.
const BYTES: usize = 4 << 20;

#[test]
fn a_copy_takes_its_bytes_over_its_rate_and_arrives() {
    let machine = Machine::of(2).with("gpu 1 down = 20").with("gpu 1 up = 10");
    let (_folder, cuda, gpus) = begun(&machine);
    let (_, context, stream) = gpus[1];
    cuda.enter(context).expect("entered");
    let there = cuda.alloc(BYTES).expect("memory");
    let mut here = cuda.host_memory(BYTES).expect("host memory");
    here.write().fill(7);
    let back = cuda.host_memory(BYTES).expect("host memory");
    let events: Vec<_> = (0..3).map(|_| cuda.event().expect("an event")).collect();
    cuda.record(events[0], stream).expect("recorded");
    cuda.copy_to_device(there, &here, BYTES, stream).expect("copied");
    cuda.record(events[1], stream).expect("recorded");
    cuda.copy_to_host(&back, there, BYTES, stream).expect("copied");
    cuda.record(events[2], stream).expect("recorded");
    cuda.wait_stream(stream).expect("done");
    let rate = |from: usize, to: usize| {
        let ms = cuda.elapsed_ms(events[from], events[to]).expect("a time");
        BYTES as f64 / (f64::from(ms) * 1e6)
    };
    assert!((rate(0, 1) - 20.0).abs() < 1e-3, "{}", rate(0, 1));
    assert!((rate(1, 2) - 10.0).abs() < 1e-3, "{}", rate(1, 2));
    assert!(back.read().iter().all(|byte| *byte == 7));
}
