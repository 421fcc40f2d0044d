//! Round trip times of small messages on an idle path.

use std::io;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::REPLY_TIMEOUT;
use model::tcp::TcpLatency;

const MESSAGE_BYTES: usize = 64;
/// Timed round trips.
const SAMPLES: usize = 200;
/// Round trips before that.
const WARMUP_SAMPLES: usize = 20;
/// A slow path is timed with fewer samples.
const MAX_DURATION: Duration = Duration::from_secs(2);

/// First byte of a message that is followed by another.
const MORE: u8 = 1;
/// First byte of the last message.
const LAST: u8 = 0;

/// Times round trips with a peer that runs [`echo`].
pub(super) fn time_round_trips(stream: &mut TcpStream) -> io::Result<TcpLatency> {
    set_timeouts(stream)?;
    let mut message = [MORE; MESSAGE_BYTES];
    let start = Instant::now();
    let mut samples = Vec::with_capacity(SAMPLES);
    for number in 0.. {
        let last = number + 1 == WARMUP_SAMPLES + SAMPLES || MAX_DURATION < start.elapsed();
        message[0] = if last { LAST } else { MORE };
        let sent = Instant::now();
        stream.write_all(&message)?;
        stream.read_exact(&mut message)?;
        if WARMUP_SAMPLES <= number || last {
            samples.push(sent.elapsed().as_secs_f64() * 1e6 / 2.0);
        }
        if last {
            break;
        }
    }
    Ok(summarize(samples))
}

/// Returns messages until the last one.
pub(super) fn echo(stream: &mut TcpStream) -> io::Result<()> {
    set_timeouts(stream)?;
    let mut message = [MORE; MESSAGE_BYTES];
    while message[0] != LAST {
        stream.read_exact(&mut message)?;
        stream.write_all(&message)?;
    }
    Ok(())
}

fn set_timeouts(stream: &TcpStream) -> io::Result<()> {
    stream.set_read_timeout(Some(REPLY_TIMEOUT))?;
    stream.set_write_timeout(Some(REPLY_TIMEOUT))
}

/// Summarizes the samples; requires at least one.
fn summarize(mut samples: Vec<f64>) -> TcpLatency {
    samples.sort_by(f64::total_cmp);
    let count = samples.len();
    let lower = samples[(count - 1) / 2];
    TcpLatency {
        samples: u32::try_from(count).unwrap_or(u32::MAX),
        min_us: samples[0],
        median_us: f64::midpoint(lower, samples[count / 2]),
        p99_us: samples[(count * 99).div_ceil(100) - 1],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_summed_up_in_order() {
        let got = summarize((1..=200).rev().map(f64::from).collect());
        assert_eq!((got.samples, got.min_us, got.median_us, got.p99_us), (200, 1.0, 100.5, 198.0));
        let one = summarize(vec![7.0]);
        assert_eq!((one.min_us, one.median_us, one.p99_us), (7.0, 7.0, 7.0));
    }
}
