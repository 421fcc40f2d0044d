//! Answers of a broken machine's driver. `copy` tests calls that hang or end the process, where
//! they hang a child of the program.

use node::ffi::cuda::code;

use crate::driver::{BYTES, begun, code_of, driver};
use crate::stub::Machine;

#[test]
fn a_call_fails_always_or_at_the_stated_count() {
    let machine = Machine::of(1).with("fail cuStreamQuery = 214 at 2");
    let (_folder, cuda, gpus) = begun(&machine.with("fail cuIpcGetMemHandle = 999 from 2"));
    let stream = gpus[0].stream;
    assert_eq!(cuda.is_idle(stream), Ok(true));
    assert_eq!(code_of(cuda.is_idle(stream)), Some(code::ECC_UNCORRECTABLE));
    assert_eq!(cuda.is_idle(stream), Ok(true));
    cuda.ipc_handle(gpus[0].memory).expect("a handle");
    for _ in 0..2 {
        assert_eq!(code_of(cuda.ipc_handle(gpus[0].memory)), Some(code::UNKNOWN));
    }
}

#[test]
fn a_lost_gpu_answers_nothing_else_any_more_and_the_others_go_on() {
    let (_folder, cuda, gpus) = begun(&Machine::of(3).with("lost 1 = 719 after 7"));
    let (one, two) = (gpus[1], gpus[2]);
    cuda.set_current_context(one.context).expect("entered");
    // It began with four calls in its context: a stream, memory, a fill, a wait.
    for _ in 0..3 {
        cuda.memory_info().expect("still there");
    }
    assert_eq!(code_of(cuda.memory_info()), Some(code::LAUNCH_FAILED));
    assert_eq!(code_of(cuda.wait_stream(one.stream)), Some(code::LAUNCH_FAILED));
    assert_eq!(code_of(cuda.alloc(4096)), Some(code::LAUNCH_FAILED));
    cuda.name(one.device).expect("its name is known");
    assert_eq!(code_of(cuda.retain_primary_context(one.device)), Some(code::LAUNCH_FAILED));
    cuda.set_current_context(two.context).expect("entered");
    cuda.fill(two.memory, 3, BYTES / 4, two.stream).expect("filled");
    cuda.synchronize().expect("done");
    // A context that accesses its memory is lost with it.
    cuda.enable_peer_access(one.context).expect("it could");
    cuda.copy(two.memory, one.memory, BYTES, two.stream).expect("queued");
    assert_eq!(code_of(cuda.wait_stream(two.stream)), Some(code::LAUNCH_FAILED));
    cuda.set_current_context(gpus[0].context).expect("entered");
    cuda.synchronize().expect("nothing to do with it");
}

#[test]
fn a_gpu_in_exclusive_or_prohibited_mode_is_unavailable() {
    let machine = Machine::of(3).with("gpu 0 compute-mode = 3").with("gpu 0 busy");
    let machine = machine.with("gpu 1 compute-mode = 2").with("gpu 2 compute-mode = 3");
    let (_folder, cuda) = driver(&machine);
    cuda.init().expect("begins");
    let gpus = cuda.devices().expect("counted");
    assert_eq!(code_of(cuda.retain_primary_context(gpus[0])), Some(code::DEVICE_UNAVAILABLE));
    assert_eq!(code_of(cuda.retain_primary_context(gpus[1])), Some(code::DEVICE_UNAVAILABLE));
    cuda.retain_primary_context(gpus[2]).expect("no other process uses it");
}

#[test]
fn memory_that_goes_while_it_is_copied_breaks_the_context() {
    let (_folder, cuda, gpus) = begun(&Machine::of(1));
    let gpu = gpus[0];
    let bytes = cuda.granularity(gpu.device).expect("a size");
    let created = cuda.create_allocation(gpu.device, bytes).expect("created");
    let at = cuda.reserve_addresses(bytes, bytes).expect("reserved");
    cuda.map_allocation(at, bytes, created).expect("mapped");
    cuda.set_access(at, bytes, gpu.device).expect("allowed");
    cuda.fill(at, 1, bytes / 4, gpu.stream).expect("queued");
    cuda.unmap_addresses(at, bytes).expect("unmapped too early");
    assert_eq!(code_of(cuda.wait_stream(gpu.stream)), Some(code::ILLEGAL_ADDRESS));
    assert_eq!(code_of(cuda.alloc(4096)), Some(code::ILLEGAL_ADDRESS), "for good");
}

#[test]
fn streams_that_cannot_wait_for_the_host_are_reported() {
    let (_folder, cuda, gpus) = begun(&Machine::of(1).with("stream-memory = no"));
    let gate = cuda.host_memory(4096).expect("host memory");
    let word = gate.address().expect("an address");
    assert_eq!(code_of(cuda.wait_value(gpus[0].stream, word, 1)), Some(code::NOT_SUPPORTED));
}

#[test]
fn calls_are_kept_in_order() {
    let (folder, cuda) = driver(&Machine::of(1).with("calls = {folder}/calls"));
    cuda.init().expect("begins");
    cuda.devices().expect("counted");
    let kept = std::fs::read_to_string(folder.path().join("calls")).expect("kept");
    let calls: Vec<&str> = kept.lines().filter_map(|line| Some(line.split_once(' ')?.1)).collect();
    assert_eq!(calls, ["cuInit", "cuDeviceGetCount", "cuDeviceGet"]);
}
