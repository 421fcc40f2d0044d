//! A driver without some calls: each error names its call, and no other call fails.

use node::ffi::cuda::{CudaCallError, CudaDevice, CudaLibrary, DevicePointer};

use crate::driver::{begun, driver};
use crate::stub::{Library, Machine};
use crate::symbols::looked_up;

/// The error of a missing call.
fn lacks<T: std::fmt::Debug>(answer: Result<T, CudaCallError>) -> &'static str {
    match answer.expect_err("it is not there") {
        CudaCallError::Missing { call } => call,
        CudaCallError::Failed { call, .. } => panic!("{call} was called"),
    }
}

#[test]
fn each_missing_call_of_a_driver_is_reported() {
    // Handles of a complete driver; none of them is used.
    let (_whole, whole, gpus) = begun(&Machine::of(1));
    let (gpu, event) = (gpus[0], whole.create_event().expect("an event"));
    let created = whole.create_allocation(gpu.device, 2 << 20).expect("created");
    let kept = ["cuInit", "cuMemHostAlloc"];
    let all = looked_up("src/node/ffi/cuda.rs");
    let missing: Vec<&str> =
        all.iter().map(String::as_str).filter(|symbol| !kept.contains(symbol)).collect();
    let (_folder, old) = driver(&Machine::of(1).without(Library::Cuda, &missing));
    old.init().expect("begins");
    let at = DevicePointer(4096);
    let host = whole.host_memory(4096).expect("host memory");
    let messages: Vec<&str> = vec![
        lacks(old.driver_version()),
        lacks(old.devices()),
        lacks(old.name(CudaDevice(0))),
        lacks(old.uuid(CudaDevice(0))),
        lacks(old.bus_id(CudaDevice(0))),
        lacks(old.total_memory(CudaDevice(0))),
        lacks(old.attribute(CudaDevice(0), 20)),
        lacks(old.can_access_peer(CudaDevice(0), CudaDevice(0))),
        lacks(old.retain_primary_context(CudaDevice(0))),
        lacks(old.release_primary_context(CudaDevice(0))),
        lacks(old.set_current_context(gpu.context)),
        lacks(old.enable_peer_access(gpu.context)),
        lacks(old.synchronize()),
        lacks(old.memory_info()),
        lacks(old.alloc(1)),
        lacks(old.free(at)),
        lacks(old.fill(at, 0, 1, gpu.stream)),
        lacks(old.copy(at, at, 1, gpu.stream)),
        lacks(old.copy_to_device(at, &host, 1, gpu.stream)),
        lacks(old.copy_to_host(&host, at, 1, gpu.stream)),
        lacks(old.create_stream()),
        lacks(old.destroy_stream(gpu.stream)),
        lacks(old.wait_stream(gpu.stream)),
        lacks(old.is_idle(gpu.stream)),
        lacks(old.wait_event(gpu.stream, event)),
        lacks(old.wait_value(gpu.stream, at, 1)),
        lacks(old.create_event()),
        lacks(old.destroy_event(event)),
        lacks(old.record_event(event, gpu.stream)),
        lacks(old.is_event_done(event)),
        lacks(old.elapsed_ms(event, event)),
        lacks(old.ipc_handle(at)),
        lacks(old.ipc_open([0; 64])),
        lacks(old.ipc_close(at)),
        lacks(old.granularity(CudaDevice(0))),
        lacks(old.create_allocation(CudaDevice(0), 1)),
        lacks(old.release_allocation(created)),
        lacks(old.reserve_addresses(1, 1)),
        lacks(old.free_addresses(at, 1)),
        lacks(old.map_allocation(at, 1, created)),
        lacks(old.unmap_addresses(at, 1)),
        lacks(old.set_access(at, 1, CudaDevice(0))),
        lacks(old.export_fabric_handle(created)),
        lacks(old.import_fabric_handle([0; 64])),
    ];
    // Calls outside the list: names of errors (fabricgate's are used), a part of `devices`, the
    // newer of two, the release of host memory, and its address, which needs its allocation.
    let others = [
        "cuGetErrorName",
        "cuDeviceGet",
        "cuDeviceGetUuid_v2",
        "cuMemFreeHost",
        "cuMemHostGetDevicePointer_v2",
    ];
    let mut all_messages: Vec<&str> = messages.into_iter().chain(others).collect();
    all_messages.sort_unstable();
    assert_eq!(all_messages, missing);
}

#[test]
fn a_driver_without_fabric_memory_does_everything_else() {
    let missing = ["cuMemCreate", "cuMemExportToShareableHandle", "cuDeviceGetUuid_v2"];
    let (_folder, old, gpus) = begun(&Machine::of(2).without(Library::Cuda, &missing));
    assert_eq!(
        CudaLibrary::missing_symbols(&old),
        ["cuDeviceGetUuid_v2", "cuMemCreate", missing[1]]
    );
    let error = old.create_allocation(gpus[0].device, 2 << 20).expect_err("it is not there");
    let message = "this driver has no cuMemCreate: it is older than the call";
    assert_eq!((error.to_string().as_str(), error.code()), (message, None));
    assert_eq!(error.call(), "cuMemCreate");
    old.uuid(gpus[1].device).expect("the older call does as well");
    old.copy(gpus[0].memory, gpus[1].memory, 4096, gpus[0].stream).expect("copied");
    old.synchronize().expect("done");
}
