//! The simulated machine's time: concurrent copies share resources, and events report it. The
//! meaning of a probe's numbers rests on this.

use node::ffi::cuda::{CudaEvent, CudaLibrary, CudaStream, DevicePointer};

use crate::driver::{BYTES, Used, begun, words};
use crate::stub::Machine;

/// A copy: destination, source, and the GPU that runs it.
type Copied = (DevicePointer, DevicePointer, usize);

/// The rates in GB/s of copies that begin together, each in its own stream.
fn together(cuda: &CudaLibrary, gpus: &[Used], copies: &[Copied]) -> Vec<f64> {
    let gate = cuda.host_memory(4096).expect("host memory");
    let word = gate.address().expect("an address");
    let queued: Vec<(CudaStream, CudaEvent, CudaEvent)> = copies
        .iter()
        .map(|(to, from, gpu)| {
            cuda.set_current_context(gpus[*gpu].context).expect("entered");
            let stream = cuda.create_stream().expect("a stream");
            let (start, end) =
                (cuda.create_event().expect("an event"), cuda.create_event().expect("one"));
            cuda.wait_value(stream, word, 1).expect("held");
            cuda.record_event(start, stream).expect("recorded");
            cuda.copy(*to, *from, BYTES, stream).expect("copied");
            cuda.record_event(end, stream).expect("recorded");
            (stream, start, end)
        })
        .collect();
    gate.set_word(1);
    queued
        .into_iter()
        .map(|(stream, start, end)| {
            cuda.wait_stream(stream).expect("reached");
            let ms = f64::from(cuda.elapsed_ms(start, end).expect("a time"));
            (BYTES as f64 / ms / 1e3).round() / 1e3
        })
        .collect()
}

fn with_access(cuda: &CudaLibrary, gpus: &[Used]) {
    for from in gpus {
        cuda.set_current_context(from.context).expect("entered");
        for to in gpus.iter().filter(|to| to.device != from.device) {
            cuda.enable_peer_access(to.context).expect("it can");
        }
    }
}

#[test]
fn a_copy_takes_its_bytes_over_its_rate() {
    let machine = Machine::of(2).with("gpu 1 down = 20").with("gpu 1 up = 10");
    let (_folder, cuda, gpus) = begun(&machine.with("local = 1000"));
    let host = cuda.host_memory(BYTES).expect("host memory");
    let host = host.address().expect("an address");
    let one = gpus[1].memory;
    assert_eq!(together(&cuda, &gpus, &[(one, host, 1)]), [20.0]);
    assert_eq!(together(&cuda, &gpus, &[(host, one, 1)]), [10.0]);
    assert_eq!(together(&cuda, &gpus, &[(one, one, 1)]), [1000.0]);
    assert_eq!(together(&cuda, &gpus, &[(gpus[0].memory, host, 0)]), [55.0]);
}

#[test]
fn a_short_copy_takes_the_machines_latency() {
    let (_folder, cuda, gpus) = begun(&Machine::of(1).with("latency = 5"));
    let (start, end) = (cuda.create_event().expect("an event"), cuda.create_event().expect("one"));
    let (at, stream) = (gpus[0].memory, gpus[0].stream);
    cuda.record_event(start, stream).expect("recorded");
    cuda.copy(at, at.offset(64), 16, stream).expect("copied");
    cuda.record_event(end, stream).expect("recorded");
    cuda.wait_stream(stream).expect("reached");
    assert_eq!(cuda.elapsed_ms(start, end), Ok(0.005));
}

#[test]
fn pairs_have_their_rates_in_each_direction() {
    let machine = Machine::of(3).with("pair = 400").with("pair 1 0 = 300").with("port = 450");
    let (_folder, cuda, gpus) = begun(&machine);
    with_access(&cuda, &gpus);
    let at: Vec<DevicePointer> = gpus.iter().map(|gpu| gpu.memory).collect();
    assert_eq!(together(&cuda, &gpus, &[(at[0], at[1], 0)]), [300.0]);
    assert_eq!(together(&cuda, &gpus, &[(at[1], at[0], 0)]), [400.0]);
    // Both directions do not affect each other.
    let both = [(at[0], at[1], 0), (at[1], at[0], 1)];
    assert_eq!(together(&cuda, &gpus, &both), [300.0, 400.0]);
    // Two copies into one GPU share its port; the slower one leaves the rest to the other.
    let into = [(at[2], at[0], 0), (at[2], at[1], 1)];
    assert_eq!(together(&cuda, &gpus, &into), [225.0, 225.0]);
}

#[test]
fn gpus_below_one_root_port_share_it_only_at_the_same_time() {
    let machine = Machine::of(3).with("gpu 0 root = a").with("gpu 1 root = a").with("root a = 60");
    let (_folder, cuda, gpus) = begun(&machine);
    let host = cuda.host_memory(BYTES).expect("host memory");
    let host = host.address().expect("an address");
    let down = |gpu: usize| (gpus[gpu].memory, host, gpu);
    assert_eq!(together(&cuda, &gpus, &[down(0)]), [55.0]);
    assert_eq!(together(&cuda, &gpus, &[down(0), down(1), down(2)]), [30.0, 30.0, 55.0]);
    let up = (host, gpus[1].memory, 1);
    assert_eq!(together(&cuda, &gpus, &[down(0), up]), [55.0, 55.0], "the other direction");
}

#[test]
fn the_others_share_the_rate_of_a_finished_copy() {
    // Pair 0 to 1 ends first; then pair 2 to 1 has the port alone.
    let machine = Machine::of(3).with("pair = 400").with("port = 400").with("pair 2 1 = 100");
    let (_folder, cuda, gpus) = begun(&machine);
    with_access(&cuda, &gpus);
    let at: Vec<DevicePointer> = gpus.iter().map(|gpu| gpu.memory).collect();
    let rates = together(&cuda, &gpus, &[(at[1], at[0], 0), (at[1], at[2], 2)]);
    assert_eq!(rates, [300.0, 100.0]);
    // Through a switch that carries half of what two pairs need.
    let machine = Machine::of(4).with("pair = 400").with("switch = 400");
    let (_folder, cuda, gpus) = begun(&machine);
    with_access(&cuda, &gpus);
    let at: Vec<DevicePointer> = gpus.iter().map(|gpu| gpu.memory).collect();
    assert_eq!(together(&cuda, &gpus, &[(at[1], at[0], 0)]), [400.0]);
    let rates = together(&cuda, &gpus, &[(at[1], at[0], 0), (at[3], at[2], 2)]);
    assert_eq!(rates, [200.0, 200.0]);
}

#[test]
fn without_access_a_copy_goes_over_the_host() {
    let machine = Machine::of(2).with("pair = 400").with("gpu up = 30").with("gpu down = 40");
    let (_folder, cuda, gpus) = begun(&machine);
    let copy = [(gpus[1].memory, gpus[0].memory, 1)];
    assert_eq!(together(&cuda, &gpus, &copy), [30.0]);
    with_access(&cuda, &gpus);
    assert_eq!(together(&cuda, &gpus, &copy), [400.0]);
}

#[test]
fn wrong_data_is_one_word_on_that_way_only() {
    let (_folder, cuda, gpus) = begun(&Machine::of(2).with("wrong-data 0 1"));
    with_access(&cuda, &gpus);
    let odd = |gpu: Used, expected: u32| {
        let words = words(&cuda, gpu, gpu.memory, BYTES);
        words.iter().filter(|word| **word != expected).count()
    };
    together(&cuda, &gpus, &[(gpus[1].memory, gpus[0].memory, 1)]);
    assert_eq!(odd(gpus[1], 0), 1);
    let (_folder, cuda, gpus) = begun(&Machine::of(2).with("wrong-data 0 1"));
    with_access(&cuda, &gpus);
    together(&cuda, &gpus, &[(gpus[0].memory, gpus[1].memory, 0)]);
    let words = words(&cuda, gpus[0], gpus[0].memory, BYTES);
    assert!(words.iter().all(|word| *word == 1), "the other way");
}
