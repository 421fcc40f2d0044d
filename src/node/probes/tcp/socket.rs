//! Sockets bound to an address, to a device, or to both.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};

use super::{TcpBinding, TcpError};

/// Maximum pending connections: all streams of a client, and some foreign connections.
const BACKLOG: i32 = 128;

/// Listens on any free port.
pub(super) fn listen(local: &TcpBinding) -> Result<TcpListener, TcpError> {
    let address = match local.address {
        Some(ip) => SocketAddr::new(ip, 0),
        None => SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 0),
    };
    let listener = listen_at(local, address);
    // Machines without IPv6 listen on their IPv4 addresses.
    if local.address.is_none() && matches!(listener, Err(TcpError::Bind { .. })) {
        return listen_at(local, SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0));
    }
    listener
}

fn listen_at(local: &TcpBinding, address: SocketAddr) -> Result<TcpListener, TcpError> {
    let socket = bind_socket(local, address)?;
    socket
        .listen(BACKLOG)
        .map_err(|source| bind_error(format!("cannot listen at {address}"), source))?;
    Ok(socket.into())
}

/// Connects to `peer` from the local address and device, within `limit`.
pub(super) fn connect(
    local: &TcpBinding,
    peer: SocketAddr,
    limit: Duration,
) -> Result<TcpStream, TcpError> {
    let address = match local.address {
        Some(ip) => SocketAddr::new(ip, 0),
        None if peer.is_ipv4() => SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0),
        None => SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 0),
    };
    if address.is_ipv4() != peer.is_ipv4() {
        let what = format!("{} and {} have different address families", address.ip(), peer.ip());
        return Err(bind_error(what, io::ErrorKind::InvalidInput.into()));
    }
    let socket = bind_socket(local, address)?;
    socket
        .connect_timeout(&peer.into(), limit)
        .map_err(|source| TcpError::Unreachable { peer: peer.to_string(), source })?;
    Ok(socket.into())
}

fn bind_socket(local: &TcpBinding, address: SocketAddr) -> Result<Socket, TcpError> {
    let domain = Domain::for_address(address);
    let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))
        .map_err(|source| bind_error("the socket cannot be created".to_owned(), source))?;
    if let Some(device) = &local.device {
        socket.bind_device(Some(device.as_bytes())).map_err(|source| {
            let what = match source.kind() {
                // SO_BINDTODEVICE in socket(7).
                io::ErrorKind::PermissionDenied => format!(
                    "device {device} cannot be bound: this needs the capability CAP_NET_RAW \
                     (or root)"
                ),
                _ => format!("device {device} cannot be bound"),
            };
            bind_error(what, source)
        })?;
    }
    // Without it, a wildcard IPv6 socket excludes IPv4 on some systems.
    if address.is_ipv6() && address.ip().is_unspecified() {
        let _ = socket.set_only_v6(false);
    }
    socket.bind(&address.into()).map_err(|source| {
        bind_error(format!("address {} cannot be bound", address.ip()), source)
    })?;
    Ok(socket)
}

fn bind_error(what: String, source: io::Error) -> TcpError {
    TcpError::Bind { what, source }
}
