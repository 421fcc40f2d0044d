//! Wall clock, boot clock and host name, read in one place for the gate.

use model::journal::ClockStamp;

/// The current time on both clocks.
#[expect(clippy::disallowed_methods, reason = "the gate is where its clocks are read")]
pub fn now() -> ClockStamp {
    let now = jiff::Timestamp::now();
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let since = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    #[expect(clippy::cast_precision_loss, reason = "an uptime has far fewer than 2^52 seconds")]
    let uptime_s = since.tv_sec as f64 + since.tv_nsec as f64 / 1e9;
    ClockStamp {
        at: now.strftime("%Y-%m-%dT%H:%M:%S%.3fZ").to_string(),
        unix: now.as_second(),
        boot: boot.trim().to_owned(),
        uptime_s,
    }
}

/// Seconds since `then`: by uptime within one boot, by the wall clock otherwise.
pub fn age_s(then: &ClockStamp, now: &ClockStamp) -> f64 {
    if !now.boot.is_empty() && now.boot == then.boot {
        return now.uptime_s - then.uptime_s;
    }
    #[expect(clippy::cast_precision_loss, reason = "seconds since 1970 are far below 2^52")]
    let seconds = now.unix.saturating_sub(then.unix) as f64;
    seconds
}

/// The host name. The gate ends only processes and jobs that belong to this host.
pub fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}
