//! Calls about the driver, its GPUs and their contexts.

use std::ffi::{c_char, c_int, c_uchar, c_uint, c_void};

use crate::codes;
use crate::driver::{answer, context_of, enter, gpu_of, wait};
use crate::streams::Goal;

/// Exports calls: the driver's state is `$driver`, and the caller passes pointers that `cuda.h`
/// allows.
macro_rules! calls {
    ($($name:ident($($arg:ident: $type:ty),*) |$($driver:ident)+| $body:block)*) => {
        $(
            #[allow(non_snake_case, reason = "the name is the driver's")]
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($arg: $type),*) -> std::ffi::c_int {
                crate::driver::answer(stringify!($name), |$($driver)+| $body)
            }
        )*
    };
}

pub(crate) use calls;

/// Writes a value to the caller's pointer.
pub unsafe fn put<T>(place: *mut T, value: T) -> Result<(), i32> {
    if place.is_null() {
        return Err(codes::INVALID_VALUE);
    }
    unsafe { place.write(value) };
    Ok(())
}

/// Writes a text there, cut to its room, with its zero byte.
unsafe fn put_text(place: *mut c_char, room: c_int, text: &str) -> Result<(), i32> {
    let room = usize::try_from(room).map_err(|_| codes::INVALID_VALUE)?;
    if place.is_null() || room == 0 {
        return Err(codes::INVALID_VALUE);
    }
    let length = text.len().min(room - 1);
    unsafe {
        place.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), length);
        place.add(length).write(0);
    }
    Ok(())
}

#[allow(non_snake_case, reason = "the name is the driver's")]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorName(code: c_int, text: *mut *const c_char) -> c_int {
    answer("cuGetErrorName", |_| {
        let name = codes::name(code).ok_or(codes::INVALID_VALUE)?;
        unsafe { put(text, name.as_ptr()) }
    })
}

calls! {
    cuInit(_flags: c_uint) |mut driver| {
        if driver.machine.visible.is_empty() {
            return Err(codes::NO_DEVICE);
        }
        driver.initialized = true;
        Ok(())
    }

    cuDriverGetVersion(version: *mut c_int) |driver| {
        unsafe { put(version, driver.machine.cuda) }
    }

    cuDeviceGetCount(count: *mut c_int) |driver| {
        unsafe { put(count, driver.machine.visible.len() as c_int) }
    }

    cuDeviceGet(device: *mut c_int, ordinal: c_int) |driver| {
        driver.gpu(ordinal)?;
        unsafe { put(device, ordinal) }
    }

    cuDeviceGetName(text: *mut c_char, room: c_int, device: c_int) |driver| {
        unsafe { put_text(text, room, &driver.gpu(device)?.1.name) }
    }

    cuDeviceGetUuid(uuid: *mut [c_uchar; 16], device: c_int) |driver| {
        unsafe { put(uuid, driver.gpu(device)?.1.uuid) }
    }

    cuDeviceGetUuid_v2(uuid: *mut [c_uchar; 16], device: c_int) |driver| {
        unsafe { put(uuid, driver.gpu(device)?.1.uuid) }
    }

    cuDeviceGetPCIBusId(text: *mut c_char, room: c_int, device: c_int) |driver| {
        unsafe { put_text(text, room, &driver.gpu(device)?.1.bus) }
    }

    cuDeviceTotalMem_v2(bytes: *mut usize, device: c_int) |driver| {
        unsafe { put(bytes, driver.gpu(device)?.1.memory as usize) }
    }

    cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: c_int) |driver| {
        let gpu = driver.gpu(device)?.1;
        // CUdevice_attribute. Unlisted attributes are unknown, as with a driver that is older
        // than the attribute.
        let answer = match attribute {
            20 => gpu.compute_mode,
            38 => gpu.cache,
            // Hopper's value.
            40 => 3,
            // Unified addressing.
            41 => 1,
            75 => 9,
            76 => 0,
            // Stream memory operations, in both of the API's versions.
            92 | 122 => c_int::from(driver.machine.stream_memory),
            128 => c_int::from(driver.machine.fabric),
            _ => return Err(codes::INVALID_VALUE),
        };
        unsafe { put(value, answer) }
    }

    cuDeviceCanAccessPeer(can: *mut c_int, device: c_int, peer: c_int) |driver| {
        let (device, peer) = (driver.gpu(device)?.0, driver.gpu(peer)?.0);
        unsafe { put(can, c_int::from(driver.machine.can_access(device, peer))) }
    }

    cuDevicePrimaryCtxRetain(context: *mut *mut c_void, device: c_int) |mut driver| {
        let (number, gpu) = driver.gpu(device)?;
        // CU_COMPUTEMODE_PROHIBITED, and CU_COMPUTEMODE_EXCLUSIVE_PROCESS in use.
        if gpu.compute_mode == 2 || (gpu.compute_mode == 3 && gpu.busy) {
            return Err(codes::DEVICE_UNAVAILABLE);
        }
        driver.retain(number)?;
        unsafe { put(context, context_of(number) as *mut c_void) }
    }

    cuDevicePrimaryCtxRelease_v2(device: c_int) |mut driver| {
        let number = driver.gpu(device)?.0;
        driver.release(number)
    }

    cuCtxSetCurrent(context: *mut c_void) |driver| {
        if context.is_null() {
            enter(None);
            return Ok(());
        }
        let gpu = gpu_of(context as u64).filter(|gpu| driver.contexts.contains_key(gpu));
        enter(Some(gpu.ok_or(codes::INVALID_CONTEXT)?));
        Ok(())
    }

    cuCtxEnablePeerAccess(context: *mut c_void, _flags: c_uint) |mut driver| {
        let from = driver.current()?;
        let to = gpu_of(context as u64).filter(|gpu| driver.contexts.contains_key(gpu));
        let to = to.ok_or(codes::INVALID_CONTEXT)?;
        if !driver.machine.can_access(from, to) {
            return Err(codes::PEER_ACCESS_UNSUPPORTED);
        }
        let is_new = driver.peers.insert((from, to));
        if is_new { Ok(()) } else { Err(codes::PEER_ACCESS_ALREADY_ENABLED) }
    }

    cuCtxSynchronize() |driver| {
        let gpu = driver.current()?;
        wait(driver, Goal::Gpu(gpu)).current()?;
        Ok(())
    }
}
