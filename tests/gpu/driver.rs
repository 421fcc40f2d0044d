//! Each call of fabricgate's loader, against a stub driver: results and errors. The numbers are
//! the simulated machine's.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use node::ffi::cuda::code::attribute;
use node::ffi::cuda::{
    CudaCallError, CudaContext, CudaDevice, CudaLibrary, CudaStream, DevicePointer, code,
};

use crate::stub::{Library, Machine};

/// A driver of this machine, and its folder.
pub(crate) fn driver(machine: &Machine) -> (tempfile::TempDir, CudaLibrary) {
    let folder = tempfile::tempdir().expect("a folder");
    let cuda =
        CudaLibrary::load(Some(&machine.driver(folder.path(), Library::Cuda))).expect("loads");
    (folder, cuda)
}

/// A GPU in use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Used {
    pub(crate) device: CudaDevice,
    pub(crate) context: CudaContext,
    pub(crate) stream: CudaStream,
    pub(crate) memory: DevicePointer,
}

/// Bytes that a test copies.
pub(crate) const BYTES: usize = 4 << 20;

/// A driver of this machine and its GPUs, each with a context, a stream and [`BYTES`] of memory
/// that hold its number.
pub(crate) fn begun(machine: &Machine) -> (tempfile::TempDir, CudaLibrary, Vec<Used>) {
    let (folder, cuda) = driver(machine);
    cuda.init().expect("begins");
    let gpus = cuda.devices().expect("counted").into_iter().map(|device| {
        let context = cuda.retain_primary_context(device).expect("a context");
        cuda.set_current_context(context).expect("entered");
        let (stream, memory) = (cuda.create_stream().expect("a stream"), cuda.alloc(BYTES));
        let memory = memory.expect("memory");
        cuda.fill(memory, device.0.unsigned_abs(), BYTES / 4, stream).expect("filled");
        cuda.wait_stream(stream).expect("done");
        Used { device, context, stream, memory }
    });
    let gpus = gpus.collect();
    (folder, cuda, gpus)
}

/// The first words at an address that this GPU reaches.
pub(crate) fn words(cuda: &CudaLibrary, gpu: Used, at: DevicePointer, bytes: usize) -> Vec<u32> {
    cuda.set_current_context(gpu.context).expect("entered");
    let host = cuda.host_memory(bytes).expect("host memory");
    cuda.copy_to_host(&host, at, bytes, gpu.stream).expect("copied");
    cuda.wait_stream(gpu.stream).expect("done");
    let (words, _) = host.read().as_chunks::<4>();
    words.iter().map(|word| u32::from_ne_bytes(*word)).collect()
}

pub(crate) fn code_of<T: std::fmt::Debug>(answer: Result<T, CudaCallError>) -> Option<i32> {
    answer.expect_err("an error").code()
}

#[test]
fn a_missing_or_foreign_library_is_reported() {
    let message =
        CudaLibrary::load(Some(Path::new("/no/such/libcuda.so.1"))).expect_err("not there");
    assert!(
        message.to_string().starts_with("/no/such/libcuda.so.1 cannot be opened: "),
        "{message}"
    );
    let folder = tempfile::tempdir().expect("a folder");
    let text = folder.path().join("libcuda.so.1");
    std::fs::write(&text, "no library").expect("written");
    let message = CudaLibrary::load(Some(&text)).expect_err("no library").to_string();
    assert!(message.contains("libcuda.so.1 cannot be opened: "), "{message}");
    let foreign = Machine::of(1).without(Library::Cuda, &["cuInit"]);
    let foreign = foreign.driver(folder.path(), Library::Cuda);
    let message = CudaLibrary::load(Some(&foreign)).expect_err("another library").to_string();
    assert!(message.ends_with("has no cuInit, so it is not the expected library"), "{message}");
}

#[test]
fn the_machine_is_reported_as_described() {
    let machine = Machine::of(2)
        .with("cuda = 12080")
        .with("gpu 1 name = Stub H200")
        .with("gpu 1 bus = 0000:C1:00.0")
        .with("gpu 1 memory = 1073741824")
        .with("gpu 1 compute-mode = 3");
    let (folder, cuda) = driver(&machine);
    assert_eq!(cuda.path(), folder.path().join("libcuda.so.1"));
    assert_eq!(code_of(cuda.devices()), Some(code::NOT_INITIALIZED));
    assert_eq!(cuda.driver_version(), Ok((12, 8)));
    cuda.init().expect("begins");
    let devices = cuda.devices().expect("counted");
    assert_eq!(devices, [CudaDevice(0), CudaDevice(1)]);
    let [first, second] = devices[..] else { unreachable!() };
    assert_eq!(cuda.name(second).expect("a name"), "Stub H200");
    assert_eq!(cuda.bus_id(second).expect("an address"), "0000:c1:00.0");
    assert_eq!(cuda.total_memory(second), Ok(1 << 30));
    assert_ne!(cuda.uuid(first), cuda.uuid(second));
    assert_eq!(cuda.attribute(second, attribute::COMPUTE_MODE), Ok(3));
    assert_eq!(cuda.attribute(second, attribute::CAPABILITY_MAJOR), Ok(9));
    assert_eq!(cuda.attribute(second, attribute::FABRIC_HANDLES), Ok(1));
    assert_eq!(code_of(cuda.attribute(first, 9999)), Some(code::INVALID_VALUE));
    assert_eq!(cuda.can_access_peer(first, second), Ok(true));
    assert_eq!(cuda.can_access_peer(first, first), Ok(false));
    assert_eq!(code_of(cuda.name(CudaDevice(2))), Some(code::INVALID_DEVICE));
}

#[test]
fn an_error_is_named_by_the_driver_or_else_by_us() {
    let (_folder, cuda) = driver(&Machine::of(0));
    let message = cuda.init().expect_err("no GPU");
    assert_eq!(message.to_string(), "cuInit: CUDA_ERROR_NO_DEVICE (100)");
    let unnamed = Machine::of(1).without(Library::Cuda, &["cuGetErrorName"]);
    let (_folder, cuda) = driver(&unnamed.with("fail cuInit = 803"));
    let message = cuda.init().expect_err("a mismatch");
    assert_eq!(message.to_string(), "cuInit: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803)");
    let (_folder, cuda) = driver(&Machine::of(1).with("fail cuInit = 12345"));
    assert_eq!(cuda.init().expect_err("odd").to_string(), "cuInit: CUDA error 12345 (12345)");
}

#[test]
fn memory_is_given_until_there_is_none_and_taken_back() {
    let machine = Machine::of(1).with("gpu memory = 8388608");
    let (_folder, cuda, gpus) = begun(&machine);
    assert_eq!(cuda.memory_info(), Ok((4 << 20, 8 << 20)));
    let second = cuda.alloc(BYTES).expect("there is room");
    assert_eq!(code_of(cuda.alloc(1)), Some(code::OUT_OF_MEMORY));
    cuda.free(second).expect("given back");
    assert_eq!(code_of(cuda.free(second)), Some(code::INVALID_VALUE));
    cuda.free(gpus[0].memory).expect("given back");
    assert_eq!(cuda.memory_info(), Ok((8 << 20, 8 << 20)));
    cuda.destroy_stream(gpus[0].stream).expect("ended");
    cuda.release_primary_context(gpus[0].device).expect("released");
    assert_eq!(
        code_of(cuda.set_current_context(gpus[0].context)),
        Some(201),
        "CUDA_ERROR_INVALID_CONTEXT"
    );
}

#[test]
fn copies_between_gpus_arrive_where_there_is_access() {
    let (_folder, cuda, gpus) = begun(&Machine::of(3).with("no-peer 0 2"));
    let (zero, one, two) = (gpus[0], gpus[1], gpus[2]);
    cuda.set_current_context(zero.context).expect("entered");
    cuda.enable_peer_access(one.context).expect("it can");
    let again = cuda.enable_peer_access(one.context);
    assert_eq!(code_of(again), Some(code::PEER_ACCESS_ALREADY_ENABLED));
    assert_eq!(code_of(cuda.enable_peer_access(two.context)), Some(code::PEER_ACCESS_UNSUPPORTED));
    cuda.copy(zero.memory, one.memory, BYTES, zero.stream).expect("copied");
    cuda.synchronize().expect("done");
    assert!(words(&cuda, zero, zero.memory, BYTES).iter().all(|word| *word == 1));
    let beyond = cuda.copy(zero.memory.offset(4), one.memory, BYTES, zero.stream);
    assert_eq!(code_of(beyond), Some(code::INVALID_VALUE));
}

#[test]
fn a_held_stream_waits_for_the_host_and_events_for_streams() {
    let (_folder, cuda, gpus) = begun(&Machine::of(1));
    let first = gpus[0].stream;
    let second = cuda.create_stream().expect("a stream");
    let gate = cuda.host_memory(4096).expect("host memory");
    let (reached, never) =
        (cuda.create_event().expect("an event"), cuda.create_event().expect("an event"));
    cuda.wait_value(first, gate.address().expect("an address"), 1).expect("held");
    cuda.fill(gpus[0].memory, 9, BYTES / 4, first).expect("filled");
    cuda.record_event(reached, first).expect("recorded");
    cuda.wait_event(second, reached).expect("waits");
    assert_eq!(cuda.is_idle(first), Ok(false));
    assert_eq!(cuda.is_idle(second), Ok(false));
    assert_eq!(cuda.is_event_done(reached), Ok(false));
    assert_eq!(cuda.is_event_done(never), Ok(true), "nothing was recorded");
    assert_eq!(code_of(cuda.elapsed_ms(reached, reached)), Some(code::NOT_READY));
    assert_eq!(code_of(cuda.elapsed_ms(never, never)), Some(code::INVALID_HANDLE));
    gate.set_word(1);
    cuda.wait_stream(second).expect("done");
    assert_eq!(cuda.is_idle(first), Ok(true));
    assert_eq!(cuda.is_event_done(reached), Ok(true));
    assert_eq!(words(&cuda, gpus[0], gpus[0].memory, 8), [9, 9]);
    cuda.destroy_event(reached).expect("ended");
    assert_eq!(code_of(cuda.destroy_event(reached)), Some(code::INVALID_HANDLE));
}

#[test]
fn another_thread_may_set_the_word() {
    let (_folder, cuda, gpus) = begun(&Machine::of(1));
    let gate = cuda.host_memory(4096).expect("host memory");
    let word = gate.address().expect("an address").0;
    cuda.wait_value(gpus[0].stream, DevicePointer(word), 1).expect("held");
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| {
            cuda.set_current_context(gpus[0].context).expect("entered");
            cuda.wait_stream(gpus[0].stream)
        });
        cuda.driver_version().expect("others are answered meanwhile");
        gate.set_word(1);
        waits.join().expect("ends").expect("done");
    });
}

#[test]
fn a_held_stream_has_a_limit_after_which_queueing_blocks() {
    let (_folder, cuda, gpus) = begun(&Machine::of(1));
    let gate = cuda.host_memory(4096).expect("host memory");
    cuda.wait_value(gpus[0].stream, gate.address().expect("an address"), 1).expect("held");
    let queued = AtomicUsize::new(1);
    std::thread::scope(|scope| {
        let queues = scope.spawn(|| {
            cuda.set_current_context(gpus[0].context).expect("entered");
            for _ in 0..2000 {
                cuda.copy(gpus[0].memory, gpus[0].memory, 16, gpus[0].stream).expect("queued");
                queued.fetch_add(1, Ordering::SeqCst);
            }
            cuda.wait_stream(gpus[0].stream)
        });
        while queued.load(Ordering::SeqCst) < 1024 {
            std::thread::yield_now();
        }
        // Without the limit it would be far beyond by now.
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(queued.load(Ordering::SeqCst), 1024);
        gate.set_word(1);
        queues.join().expect("ends").expect("done");
    });
}

#[test]
fn a_context_frees_its_allocations_at_its_end() {
    let (_folder, cuda, gpus) = begun(&Machine::of(2));
    let (one, other) = (gpus[0], gpus[1]);
    assert_eq!(cuda.retain_primary_context(one.device), Ok(one.context), "the same, twice");
    cuda.release_primary_context(one.device).expect("once");
    assert!(words(&cuda, one, one.memory, 8) == [0, 0], "still there");
    cuda.release_primary_context(one.device).expect("twice");
    assert_eq!(
        code_of(cuda.release_primary_context(one.device)),
        Some(201),
        "CUDA_ERROR_INVALID_CONTEXT"
    );
    cuda.set_current_context(other.context).expect("entered");
    assert_eq!(code_of(cuda.free(one.memory)), Some(code::INVALID_VALUE));
    assert_eq!(code_of(cuda.wait_stream(one.stream)), Some(code::INVALID_HANDLE));
    cuda.free(other.memory).expect("given back");
}

#[test]
fn events_are_of_one_context() {
    let (_folder, cuda, gpus) = begun(&Machine::of(2));
    let event = cuda.create_event().expect("an event");
    let wrong = cuda.record_event(event, gpus[0].stream);
    assert_eq!(code_of(wrong), Some(code::INVALID_HANDLE), "GPU 1 was current");
    cuda.record_event(event, gpus[1].stream).expect("recorded");
    cuda.set_current_context(gpus[0].context).expect("entered");
    let other = cuda.create_event().expect("an event");
    cuda.record_event(other, gpus[0].stream).expect("recorded");
    assert_eq!(code_of(cuda.elapsed_ms(event, other)), Some(code::INVALID_HANDLE));
    cuda.wait_event(gpus[0].stream, event).expect("waiting is allowed");
}

#[test]
fn fabric_memory_is_created_exported_imported_and_mapped() {
    let (_here, owner, owners) = begun(&Machine::of(2).with("node = n1").with("clique = 7"));
    let (_there, other, others) = begun(&Machine::of(2).with("node = n2").with("clique = 7"));
    let bytes = owner.granularity(owners[1].device).expect("a size");
    assert_eq!(
        code_of(owner.create_allocation(owners[1].device, bytes + 1)),
        Some(code::INVALID_VALUE)
    );
    let created = owner.create_allocation(owners[1].device, bytes).expect("created");
    let at = owner.reserve_addresses(bytes, bytes).expect("reserved");
    owner.map_allocation(at, bytes, created).expect("mapped");
    let early = owner.fill(at, 5, bytes / 4, owners[1].stream);
    assert_eq!(code_of(early), Some(code::INVALID_VALUE), "no GPU may use it yet");
    owner.set_access(at, bytes, owners[1].device).expect("allowed");
    owner.fill(at, 5, bytes / 4, owners[1].stream).expect("filled");
    owner.wait_stream(owners[1].stream).expect("done");

    let imported = other
        .import_fabric_handle(owner.export_fabric_handle(created).expect("exported"))
        .expect("imported");
    let seen = other.reserve_addresses(bytes, bytes).expect("reserved");
    other.map_allocation(seen, bytes, imported).expect("mapped");
    other.set_access(seen, bytes, others[0].device).expect("allowed");
    other.copy(others[0].memory, seen, bytes, others[1].stream).expect_err("of another GPU");
    let (first, last) = (others[0], bytes / 4 - 1);
    other.set_current_context(first.context).expect("entered");
    other.copy(first.memory, seen, bytes, first.stream).expect("copied");
    other.wait_stream(first.stream).expect("done");
    assert_eq!(words(&other, first, first.memory, bytes)[last], 5);
    other.unmap_addresses(seen, bytes).expect("unmapped");
    other.free_addresses(seen, bytes).expect("given back");
    other.release_allocation(imported).expect("released");

    // Its own memory, which is how a process detects a working fabric.
    let own = owner
        .import_fabric_handle(owner.export_fabric_handle(created).expect("exported"))
        .expect("its own");
    owner.release_allocation(own).expect("released");
    assert_eq!(code_of(owner.free_addresses(at, bytes)), Some(code::INVALID_VALUE), "still mapped");
    owner.unmap_addresses(at, bytes).expect("unmapped");
    owner.free_addresses(at, bytes).expect("given back");
    owner.release_allocation(created).expect("released");
}

#[test]
fn fabric_memory_is_refused_without_a_channel_and_across_cliques() {
    let (_folder, none, gpus) = begun(&Machine::of(1).with("imex = no"));
    let refused = none.create_allocation(gpus[0].device, 2 << 20);
    assert_eq!(code_of(refused), Some(code::NOT_PERMITTED));
    let (_folder, old, gpus) = begun(&Machine::of(1).with("fabric = no"));
    assert_eq!(old.attribute(gpus[0].device, attribute::FABRIC_HANDLES), Ok(0));
    assert_eq!(code_of(old.create_allocation(gpus[0].device, 2 << 20)), Some(code::NOT_SUPPORTED));
    let (_one, one, gpus) = begun(&Machine::of(1).with("clique = 1"));
    let (_two, two, _) = begun(&Machine::of(1).with("clique = 2"));
    let created = one.create_allocation(gpus[0].device, 2 << 20).expect("created");
    let handle = one.export_fabric_handle(created).expect("exported");
    assert_eq!(code_of(two.import_fabric_handle(handle)), Some(code::INVALID_HANDLE));
    one.release_allocation(created).expect("released");
    assert_eq!(code_of(one.import_fabric_handle(handle)), Some(code::INVALID_HANDLE), "it is gone");
    assert_eq!(code_of(one.import_fabric_handle([0; 64])), Some(code::INVALID_HANDLE));
}

/// The variable that names the handle for a test's second process.
const HANDLE: &str = "FABRICGATE_TEST_HANDLE";

#[test]
fn memory_of_another_process_on_the_node_is_opened() {
    let (folder, cuda, gpus) = begun(&Machine::of(2).with("pair = 100"));
    let handle = cuda.ipc_handle(gpus[1].memory).expect("a handle");
    assert_eq!(code_of(cuda.ipc_open(handle)), Some(201), "not by its own process");
    let text: String = handle.iter().map(|byte| format!("{byte:02x}")).collect();
    #[expect(clippy::disallowed_methods, reason = "a test needs a second process")]
    let output = std::process::Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "driver::opens_another_processes_memory", "--include-ignored"])
        .env(HANDLE, text)
        .env(crate::stub::MACHINE, folder.path().join("machine.txt"))
        .output()
        .expect("started");
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && stdout.contains("1 passed"), "{stdout}");
    assert_eq!(words(&cuda, gpus[1], gpus[1].memory, 8), [77, 77], "it wrote here");
}

#[test]
#[ignore = "the second process of another test"]
fn opens_another_processes_memory() {
    let Ok(text) = std::env::var(HANDLE) else { return };
    let mut handle = [0; 64];
    for (at, byte) in handle.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).expect("hexadecimal");
    }
    let (_folder, cuda, gpus) = begun(&Machine::of(2).with("pair = 100"));
    cuda.set_current_context(gpus[0].context).expect("entered");
    let there = cuda.ipc_open(handle).expect("opened");
    assert_eq!(words(&cuda, gpus[0], there, 8), [1, 1]);
    let (start, end) =
        (cuda.create_event().expect("an event"), cuda.create_event().expect("an event"));
    cuda.record_event(start, gpus[0].stream).expect("recorded");
    cuda.copy(gpus[0].memory, there, BYTES, gpus[0].stream).expect("copied");
    cuda.record_event(end, gpus[0].stream).expect("recorded");
    cuda.fill(there, 77, 2, gpus[0].stream).expect("filled");
    cuda.synchronize().expect("done");
    let ms = cuda.elapsed_ms(start, end).expect("a time");
    assert!((BYTES as f64 / f64::from(ms) / 1e6 - 100.0).abs() < 0.01, "{ms} ms");
    cuda.ipc_close(there).expect("closed");
    assert_eq!(code_of(cuda.ipc_close(there)), Some(code::INVALID_VALUE));
}
