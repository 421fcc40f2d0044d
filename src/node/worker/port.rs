//! Checks whether a process listens on a TCP port of this machine, from the kernel's tables
//! (`/proc/net/tcp`, proc(5)).

use std::path::Path;

/// State LISTEN in the kernel's tables (`include/net/tcp_states.h`).
const LISTEN: &str = "0A";

/// True if a socket listens on this port, over IPv4 or IPv6.
pub(super) fn is_listening(proc: &Path, port: u16) -> bool {
    ["net/tcp", "net/tcp6"].iter().any(|table| {
        std::fs::read_to_string(proc.join(table)).is_ok_and(|text| has_listener(&text, port))
    })
}

fn has_listener(table: &str, port: u16) -> bool {
    let wanted = format!(":{port:04X}");
    table.lines().skip(1).any(|line| {
        let mut columns = line.split_ascii_whitespace().skip(1);
        let local = columns.next().unwrap_or_default();
        local.ends_with(&wanted) && columns.nth(1) == Some(LISTEN)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "  sl  local_address rem_address   st tx_queue rx_queue\n   \
        0: 0100007F:1451 00000000:0000 0A 00000000:00000000 00:00000000\n   \
        1: 0100007F:1452 0100007F:9C40 01 00000000:00000000 00:00000000\n";

    #[test]
    fn a_listening_socket_is_told_from_a_connected_one() {
        assert!(has_listener(TABLE, 0x1451));
        assert!(!has_listener(TABLE, 0x1452), "a connection is no listener");
        assert!(!has_listener(TABLE, 0x9C40), "nor is its other end");
        assert!(!has_listener("", 1));
    }
}
