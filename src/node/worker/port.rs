//! Checks which process listens on a TCP port of this machine, from the kernel's tables
//! (`/proc/net/tcp`, proc(5)).

use std::collections::BTreeSet;
use std::path::Path;

use super::procfs;

/// State LISTEN in the kernel's tables (`include/net/tcp_states.h`).
const LISTEN: &str = "0A";

/// A process that listens on a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PortListener {
    /// It is in the given process group.
    InGroup,
    /// It is in another group, or the kernel does not show its sockets to this user.
    Elsewhere,
}

/// The process that listens on this port, over IPv4 or IPv6; `None` if no process does.
pub(super) fn find_listener(proc: &Path, port: u16, group: i32) -> Option<PortListener> {
    let sockets = listening_sockets(proc, port);
    if sockets.is_empty() {
        return None;
    }
    let owns = |pid: u32| {
        procfs::read_process(proc, pid).is_some_and(|it| it.group == group)
            && has_one_of_sockets(&proc.join(pid.to_string()).join("fd"), &sockets)
    };
    Some(match procfs::list_pids(proc).into_iter().any(owns) {
        true => PortListener::InGroup,
        false => PortListener::Elsewhere,
    })
}

/// True if a socket listens on this port, over IPv4 or IPv6.
pub(super) fn is_listening(proc: &Path, port: u16) -> bool {
    !listening_sockets(proc, port).is_empty()
}

/// The names of the sockets that listen on this port, as `/proc/PID/fd` links to them.
fn listening_sockets(proc: &Path, port: u16) -> BTreeSet<String> {
    let read = |table| std::fs::read_to_string(proc.join(table)).unwrap_or_default();
    let mut sockets = BTreeSet::new();
    for table in ["net/tcp", "net/tcp6"] {
        collect_listeners(&read(table), port, &mut sockets);
    }
    sockets
}

fn collect_listeners(table: &str, port: u16, sockets: &mut BTreeSet<String>) {
    let wanted = format!(":{port:04X}");
    for line in table.lines().skip(1) {
        let mut columns = line.split_ascii_whitespace().skip(1);
        let local = columns.next().unwrap_or_default();
        if local.ends_with(&wanted) && columns.nth(1) == Some(LISTEN) {
            // Queues, timer, retransmits, user and timeout are before the inode.
            sockets.insert(format!("socket:[{}]", columns.nth(5).unwrap_or_default()));
        }
    }
}

/// True if one of the descriptors in this folder is one of these sockets.
fn has_one_of_sockets(descriptors: &Path, sockets: &BTreeSet<String>) -> bool {
    let Ok(entries) = std::fs::read_dir(descriptors) else { return false };
    entries.flatten().any(|entry| {
        std::fs::read_link(entry.path())
            .is_ok_and(|target| target.to_str().is_some_and(|it| sockets.contains(it)))
    })
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;

    const TABLE: &str = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when \
        retrnsmt   uid  timeout inode\n   \
        0: 0100007F:1451 00000000:0000 0A 00000000:00000000 00:00000000 00000000  0  0 40 1\n   \
        1: 0100007F:1452 0100007F:9C40 01 00000000:00000000 00:00000000 00000000  0  0 41 1\n";

    #[test]
    fn a_listening_socket_is_distinguished_from_a_connected_one() {
        let find = |table: &str, port| {
            let mut sockets = BTreeSet::new();
            collect_listeners(table, port, &mut sockets);
            sockets.into_iter().collect::<Vec<_>>()
        };
        assert_eq!(find(TABLE, 0x1451), ["socket:[40]"]);
        assert!(find(TABLE, 0x1452).is_empty(), "a connection is not a listener");
        assert!(find(TABLE, 0x9C40).is_empty(), "nor is its other end");
        assert!(find("", 1).is_empty());
    }

    #[test]
    fn a_listener_belongs_to_one_process_group() {
        let proc = Path::new("/proc");
        let own = procfs::read_process(proc, std::process::id()).expect("this process").group;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let port = listener.local_addr().expect("an address").port();
        assert_eq!(find_listener(proc, port, own), Some(PortListener::InGroup));
        assert_eq!(find_listener(proc, port, i32::MAX), Some(PortListener::Elsewhere));
        // Without the kernel's tables no server is ever ready.
        let empty = tempfile::tempdir().expect("a folder");
        assert_eq!(find_listener(empty.path(), port, own), None);
        drop(listener);
        assert_eq!(find_listener(proc, port, own), None);
    }
}
