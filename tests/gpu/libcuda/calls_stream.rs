//! Calls about streams and events, and the work queued in them.

use std::ffi::{c_uint, c_ulonglong, c_void};

use crate::calls_device::{calls, put};
use crate::codes;
use crate::driver::{Guard, queue, wait};
use crate::rates::Place;
use crate::streams::{Effect, Goal, Work};

/// Queues a copy. `peer`: it may go over the host where no other way exists, and either context's
/// access suffices.
fn copy(mut driver: Guard, to: u64, from: u64, bytes: usize, stream: u64) -> Result<(), i32> {
    let bytes = bytes as u64;
    let (stream, gpu) = driver.stream(stream)?;
    let place = |address: u64| driver.place(address, bytes, gpu);
    let (source, target) = (place(from)?, place(to)?);
    let direct = driver.is_direct(&source, &target, from, to);
    let way = driver.machine.way(&source, &target, direct);
    let is_wrong = driver.machine.is_wrong(&source, &target);
    let at_least_ns = driver.machine.latency_ns;
    let effect = Effect::Copy { to, from, bytes, is_wrong };
    let amount = bytes as f64;
    queue(driver, stream, Work::Transfer { amount, way, at_least_ns, effect });
    Ok(())
}

calls! {
    cuMemsetD32Async(at: c_ulonglong, word: c_uint, words: usize, stream: *mut c_void)
    |mut driver| {
        let words = words as u64;
        let (stream, gpu) = driver.stream(stream as u64)?;
        let place = driver.place(at, words * 4, gpu)?;
        if !at.is_multiple_of(4) {
            return Err(codes::INVALID_VALUE);
        }
        let way = driver.machine.way(&place, &place, true);
        let (amount, at_least_ns) = (words as f64 * 4.0, driver.machine.latency_ns);
        let effect = Effect::Fill { at, word, words };
        queue(driver, stream, Work::Transfer { amount, way, at_least_ns, effect });
        Ok(())
    }

    cuMemcpyAsync(to: c_ulonglong, from: c_ulonglong, bytes: usize, stream: *mut c_void)
    |driver| {
        copy(driver, to, from, bytes, stream as u64)
    }

    cuMemcpyHtoDAsync_v2(to: c_ulonglong, from: *const c_void, bytes: usize, stream: *mut c_void)
    |driver| {
        if driver.region(to, bytes as u64).is_none_or(|place| place == Place::Host) {
            return Err(codes::INVALID_VALUE);
        }
        copy(driver, to, from as u64, bytes, stream as u64)
    }

    cuMemcpyDtoHAsync_v2(to: *mut c_void, from: c_ulonglong, bytes: usize, stream: *mut c_void)
    |driver| {
        if driver.region(from, bytes as u64).is_none_or(|place| place == Place::Host) {
            return Err(codes::INVALID_VALUE);
        }
        copy(driver, to as u64, from, bytes, stream as u64)
    }

    cuStreamCreate(stream: *mut *mut c_void, _flags: c_uint) |mut driver| {
        let gpu = driver.current()?;
        let handle = driver.streams.create(gpu);
        unsafe { put(stream, handle as *mut c_void) }
    }

    cuStreamDestroy_v2(stream: *mut c_void) |mut driver| {
        driver.streams.settle();
        let ended = driver.streams.destroy(stream as u64);
        if ended { Ok(()) } else { Err(codes::INVALID_HANDLE) }
    }

    cuStreamSynchronize(stream: *mut c_void) |mut driver| {
        let (stream, _) = driver.stream(stream as u64)?;
        wait(driver, Goal::Stream(stream)).stream(stream)?;
        Ok(())
    }

    cuStreamQuery(stream: *mut c_void) |mut driver| {
        let (stream, _) = driver.stream(stream as u64)?;
        let is_idle = driver.look(Goal::Stream(stream));
        driver.stream(stream)?;
        if is_idle { Ok(()) } else { Err(codes::NOT_READY) }
    }

    cuStreamWaitEvent(stream: *mut c_void, event: *mut c_void, _flags: c_uint) |mut driver| {
        let (stream, _) = driver.stream(stream as u64)?;
        let event = event as u64;
        let record = driver.streams.records(event).ok_or(codes::INVALID_HANDLE)?;
        queue(driver, stream, Work::Await { event, record });
        Ok(())
    }

    cuStreamWaitValue32_v2(
        stream: *mut c_void, word: c_ulonglong, value: c_uint, flags: c_uint
    ) |mut driver| {
        let (stream, gpu) = driver.stream(stream as u64)?;
        if !driver.machine.stream_memory {
            return Err(codes::NOT_SUPPORTED);
        }
        driver.place(word, 4, gpu)?;
        // The program uses CU_STREAM_WAIT_VALUE_GEQ; the others are not simulated.
        if flags != 0 || !word.is_multiple_of(4) {
            return Err(codes::INVALID_VALUE);
        }
        queue(driver, stream, Work::Hold { word, value });
        Ok(())
    }

    cuEventCreate(event: *mut *mut c_void, _flags: c_uint) |mut driver| {
        let gpu = driver.current()?;
        let handle = driver.streams.create_event(gpu);
        unsafe { put(event, handle as *mut c_void) }
    }

    cuEventDestroy_v2(event: *mut c_void) |mut driver| {
        let destroyed = driver.streams.destroy_event(event as u64);
        if destroyed { Ok(()) } else { Err(codes::INVALID_HANDLE) }
    }

    cuEventRecord(event: *mut c_void, stream: *mut c_void) |mut driver| {
        let (stream, _) = driver.stream(stream as u64)?;
        let recorded = driver.streams.record(event as u64, stream);
        if recorded { Ok(()) } else { Err(codes::INVALID_HANDLE) }
    }

    cuEventQuery(event: *mut c_void) |mut driver| {
        driver.current()?;
        let event = event as u64;
        let record = driver.streams.records(event).ok_or(codes::INVALID_HANDLE)?;
        let is_reached = driver.look(Goal::Event { event, record });
        driver.current()?;
        if is_reached { Ok(()) } else { Err(codes::NOT_READY) }
    }

    cuEventElapsedTime(ms: *mut f32, from: *mut c_void, to: *mut c_void) |mut driver| {
        driver.current()?;
        driver.streams.settle();
        // cuda.h: both of one context.
        if driver.streams.event_gpu(from as u64) != driver.streams.event_gpu(to as u64) {
            return Err(codes::INVALID_HANDLE);
        }
        let time = |event: *mut c_void| {
            let event = event as u64;
            let records = driver.streams.records(event).ok_or(codes::INVALID_HANDLE)?;
            if records == 0 {
                return Err(codes::INVALID_HANDLE);
            }
            driver.streams.reached_ns(event).ok_or(codes::NOT_READY)
        };
        let (from, to) = (time(from)?, time(to)?);
        unsafe { put(ms, ((to - from) / 1e6) as f32) }
    }

    // Not a call of the driver: the stubs of other libraries use it to take simulated time in a
    // stream, and to run a function at its end.
    fabricgate_stub_work(
        stream: *mut c_void, nanoseconds: f64,
        function: extern "C" fn(*mut c_void), data: *mut c_void
    ) |mut driver| {
        let (stream, _) = driver.stream(stream as u64)?;
        let effect = Effect::Call { function, data: data as usize };
        let transfer =
            Work::Transfer { amount: 0.0, way: Vec::new(), at_least_ns: nanoseconds, effect };
        queue(driver, stream, transfer);
        Ok(())
    }
}
