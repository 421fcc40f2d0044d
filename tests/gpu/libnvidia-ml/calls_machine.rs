//! Calls about the driver, and handles of GPUs.

use std::ffi::{c_char, c_int, c_uint};

use crate::machine::{Handle, INVALID_ARGUMENT, calls, put, put_text};

calls! {
    nvmlInit_v2() |_machine| { Ok(()) }

    nvmlShutdown() |_machine| { Ok(()) }

    nvmlSystemGetDriverVersion(text: *mut c_char, room: c_uint) |machine| {
        let driver = machine.description.get::<String>(&["nvml", "driver"]);
        put_text(text, room, driver.as_deref().unwrap_or("580.95.05"))
    }

    nvmlSystemGetNVMLVersion(text: *mut c_char, room: c_uint) |_machine| {
        put_text(text, room, "13.580.95.05")
    }

    nvmlSystemGetCudaDriverVersion_v2(version: *mut c_int) |machine| {
        put(version, machine.description.get(&["cuda"]).unwrap_or(13_000))
    }

    nvmlDeviceGetCount_v2(count: *mut c_uint) |machine| { put(count, machine.gpus()) }

    nvmlDeviceGetHandleByIndex_v2(index: c_uint, device: *mut Handle) |machine| {
        if machine.gpus() <= index {
            return Err(INVALID_ARGUMENT);
        }
        put(device, (index as usize + 1) as Handle)
    }
}
