//! Calls about memory: allocating it, mapping it, and sharing it with other processes.

use std::ffi::{c_int, c_uchar, c_uint, c_ulonglong, c_void};

use crate::calls_device::{calls, put};
use crate::codes;
use crate::driver::wait;
use crate::memory::{GRANULARITY, Origin, Token};
use crate::rates::Place;
use crate::streams::Goal;

/// `CUipcMemHandle`, by value.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct IpcHandle([c_uchar; 64]);

/// `CUmemAllocationProp`: kind, handle types, location (kind and id), and fields that are unused
/// here.
#[repr(C)]
pub struct AllocationProp {
    kind: c_int,
    handle_types: c_int,
    location: [c_int; 2],
    win32: *mut c_void,
    flags: [c_uchar; 8],
}

/// `CUmemAccessDesc`.
#[repr(C)]
pub struct AccessDesc {
    location: [c_int; 2],
    flags: c_int,
}

// cuda.h: CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_LOCATION_TYPE_DEVICE,
// CU_MEM_HANDLE_TYPE_FABRIC, CU_MEM_ACCESS_FLAGS_PROT_READWRITE.
const PINNED: c_int = 1;
const ON_DEVICE: c_int = 1;
const FABRIC: c_int = 8;
const READ_WRITE: c_int = 3;

/// The GPU of the requested fabric memory.
unsafe fn asked_for(prop: *const AllocationProp) -> Result<c_int, i32> {
    let prop = unsafe { prop.as_ref() }.ok_or(codes::INVALID_VALUE)?;
    let [kind, gpu] = prop.location;
    let is_ours = (prop.kind, prop.handle_types, kind) == (PINNED, FABRIC, ON_DEVICE);
    let is_plain = prop.win32.is_null() && prop.flags == [0; 8];
    if is_ours && is_plain { Ok(gpu) } else { Err(codes::INVALID_VALUE) }
}

calls! {
    cuMemGetInfo_v2(free: *mut usize, total: *mut usize) |driver| {
        let gpu = driver.current()?;
        let place = driver.machine.place(gpu);
        let all = driver.machine.gpus[gpu as usize].memory;
        unsafe {
            put(free, (all - driver.used(&place)) as usize)?;
            put(total, all as usize)
        }
    }

    cuMemAlloc_v2(address: *mut c_ulonglong, bytes: usize) |mut driver| {
        let gpu = driver.current()?;
        let place = driver.room(gpu, bytes as u64)?;
        let at = driver.memory.allocate(bytes as u64, place, gpu)?;
        unsafe { put(address, at) }
    }

    cuMemFree_v2(address: c_ulonglong) |driver| {
        driver.current()?;
        // As the driver does: only when all work is done.
        let mut driver = wait(driver, Goal::Everything);
        driver.memory.free(address, Origin::Allocated)
    }

    cuMemHostAlloc(place: *mut *mut c_void, bytes: usize, _flags: c_uint) |mut driver| {
        let gpu = driver.current()?;
        let at = driver.memory.allocate(bytes as u64, Place::Host, gpu)?;
        unsafe { put(place, at as *mut c_void) }
    }

    cuMemFreeHost(place: *mut c_void) |driver| {
        // Without a context as well: it is host memory.
        let mut driver = wait(driver, Goal::Everything);
        driver.memory.free(place as u64, Origin::Host)
    }

    cuMemHostGetDevicePointer_v2(address: *mut c_ulonglong, place: *mut c_void, _flags: c_uint)
    |driver| {
        driver.current()?;
        let is_ours = driver.region(place as u64, 1) == Some(Place::Host);
        if !is_ours {
            return Err(codes::INVALID_VALUE);
        }
        unsafe { put(address, place as u64) }
    }

    cuIpcGetMemHandle(handle: *mut IpcHandle, address: c_ulonglong) |driver| {
        driver.current()?;
        let token = driver.memory.ipc(address)?;
        unsafe { put(handle, IpcHandle(token.bytes())) }
    }

    cuIpcOpenMemHandle_v2(address: *mut c_ulonglong, handle: IpcHandle, _flags: c_uint)
    |mut driver| {
        let gpu = driver.current()?;
        let token = Token::of(&handle.0).filter(|token| !token.fabric);
        let token = token.ok_or(codes::INVALID_VALUE)?;
        // cuda.h: a process cannot open an allocation that it exported itself.
        if token.process == std::process::id() {
            return Err(codes::INVALID_CONTEXT);
        }
        let at = driver.memory.open(&token, gpu)?;
        unsafe { put(address, at) }
    }

    cuIpcCloseMemHandle(address: c_ulonglong) |driver| {
        driver.current()?;
        let mut driver = wait(driver, Goal::Everything);
        driver.memory.free(address, Origin::Opened)
    }

    cuMemGetAllocationGranularity(bytes: *mut usize, prop: *const AllocationProp, _kind: c_int)
    |driver| {
        driver.gpu(unsafe { asked_for(prop) }?)?;
        unsafe { put(bytes, GRANULARITY as usize) }
    }

    cuMemCreate(
        handle: *mut c_ulonglong, bytes: usize, prop: *const AllocationProp, _flags: c_ulonglong
    ) |mut driver| {
        let gpu = driver.gpu(unsafe { asked_for(prop) }?)?.0;
        if !driver.machine.fabric {
            return Err(codes::NOT_SUPPORTED);
        }
        if !driver.machine.imex {
            return Err(codes::NOT_PERMITTED);
        }
        let place = driver.room(gpu, bytes as u64)?;
        let created = driver.memory.create(bytes as u64, place)?;
        unsafe { put(handle, created) }
    }

    cuMemRelease(handle: c_ulonglong) |mut driver| {
        driver.memory.release(handle)
    }

    cuMemAddressReserve(
        address: *mut c_ulonglong, bytes: usize, alignment: usize,
        _hint: c_ulonglong, _flags: c_ulonglong
    ) |mut driver| {
        let at = driver.memory.reserve(bytes as u64, alignment as u64)?;
        unsafe { put(address, at) }
    }

    cuMemAddressFree(address: c_ulonglong, bytes: usize) |mut driver| {
        driver.memory.unreserve(address, bytes as u64)
    }

    cuMemMap(
        address: c_ulonglong, bytes: usize, offset: usize, handle: c_ulonglong,
        _flags: c_ulonglong
    ) |mut driver| {
        if offset != 0 {
            return Err(codes::INVALID_VALUE);
        }
        driver.memory.map(address, bytes as u64, handle)
    }

    cuMemUnmap(address: c_ulonglong, bytes: usize) |mut driver| {
        driver.memory.unmap(address, bytes as u64)
    }

    cuMemSetAccess(
        address: c_ulonglong, bytes: usize, access: *const AccessDesc, count: usize
    ) |mut driver| {
        for place in 0..count {
            let access = unsafe { access.add(place).as_ref() }.ok_or(codes::INVALID_VALUE)?;
            let [kind, gpu] = access.location;
            let gpu = driver.gpu(gpu)?.0;
            if kind != ON_DEVICE || access.flags != READ_WRITE {
                return Err(codes::INVALID_VALUE);
            }
            driver.memory.allow(address, bytes as u64, gpu)?;
        }
        Ok(())
    }

    cuMemExportToShareableHandle(
        handle: *mut c_void, allocation: c_ulonglong, kind: c_int, _flags: c_ulonglong
    ) |driver| {
        if kind != FABRIC {
            return Err(codes::NOT_SUPPORTED);
        }
        let token = driver.memory.export(allocation, driver.machine.clique)?;
        unsafe { put(handle.cast::<[u8; 64]>(), token.bytes()) }
    }

    cuMemImportFromShareableHandle(
        allocation: *mut c_ulonglong, handle: *mut c_void, kind: c_int
    ) |mut driver| {
        if kind != FABRIC || handle.is_null() {
            return Err(codes::INVALID_VALUE);
        }
        if !driver.machine.imex {
            return Err(codes::NOT_PERMITTED);
        }
        let bytes = unsafe { handle.cast::<[u8; 64]>().read() };
        let token = Token::of(&bytes).filter(|token| token.fabric);
        // Of another clique: no memory on this side of the fabric has this address.
        let token = token.filter(|token| token.clique == driver.machine.clique);
        let imported = driver.memory.import(&token.ok_or(codes::INVALID_HANDLE)?)?;
        unsafe { put(allocation, imported) }
    }
}
