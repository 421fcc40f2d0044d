//! The one TLS back end of every client.

use reqwest::ClientBuilder;

/// Installs ring as rustls' provider, once; every place that makes a client
/// calls this first, because tests have no `main` that could.
pub fn install_provider() {
    // An error says that it is installed already, which is what is wanted.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// A client for an address of this scheme. The authorities that this machine trusts are
/// loaded for https alone: a machine may have none.
pub fn configure_for_scheme(builder: ClientBuilder, scheme: &str) -> ClientBuilder {
    match scheme {
        "https" => builder,
        _ => builder.tls_certs_only([]),
    }
}

/// What a machine needs where a client for https cannot be made.
pub const MISSING_CA_HINT: &str = "for https this machine needs the authorities it trusts: the package ca-certificates has them, \
     or SSL_CERT_FILE names a file";
