//! The TLS back end shared by all clients.

use reqwest::ClientBuilder;

/// Installs ring as rustls' provider, once. Every function that creates a client calls this
/// first, because tests have no `main` that could.
pub fn install_provider() {
    // An error means that it is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// A client for an address of this scheme. The machine's trusted authorities are loaded for
/// https alone: a machine may have none.
pub fn configure_for_scheme(builder: ClientBuilder, scheme: &str) -> ClientBuilder {
    match scheme {
        "https" => builder,
        _ => builder.tls_certs_only([]),
    }
}

/// A hint for a machine on which no https client can be created.
pub const MISSING_CA_HINT: &str = "for https this machine needs the authorities it trusts: the package ca-certificates has them, \
     or SSL_CERT_FILE names a file";
