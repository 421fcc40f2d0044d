//! Opens a driver's library at run time, so that this program also starts without the driver.
//!
//! This module is generic. `cuda` and `nccl` define which symbols a library must have.

#![expect(unsafe_code, reason = "opening a shared library runs its code")]

use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};

use libloading::Library;

/// Why a library cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LibraryLoadError {
    /// No library of these names could be opened.
    #[error("{} cannot be opened: {message}", .tried.join(", "))]
    NotFound {
        /// The names tried.
        tried: Vec<String>,
        /// Error of the loader for the first name.
        message: String,
    },
    /// The library lacks a symbol that all versions have, so it is a different library.
    #[error("{} has no {symbol}, so it is not the expected library", .path.display())]
    WrongLibrary {
        /// Path of the library.
        path: PathBuf,
        /// Name of the missing symbol.
        symbol: String,
    },
}

/// An open library and the name that opened it.
///
/// It is never unloaded: the driver's own threads may still run its code after the last call.
#[derive(Debug)]
pub(super) struct LoadedLibrary {
    pub(super) library: ManuallyDrop<Library>,
    pub(super) path: PathBuf,
}

/// Opens the library at this path, or the first of these names that the loader finds.
pub(super) fn open_library(
    path: Option<&Path>,
    names: &[&str],
) -> Result<LoadedLibrary, LibraryLoadError> {
    let named = names.iter().map(PathBuf::from);
    let candidates: Vec<PathBuf> = path.map_or(named.collect(), |path| vec![path.to_owned()]);
    let mut first_error = None;
    for path in &candidates {
        // SAFETY: opening a library runs its initializers. It is the driver's library or the one
        // that the caller chose; a driver cannot be used otherwise.
        match unsafe { Library::new(path) } {
            Ok(library) => {
                let library = ManuallyDrop::new(library);
                return Ok(LoadedLibrary { library, path: path.clone() });
            }
            Err(error) => first_error.get_or_insert(error.to_string()),
        };
    }
    Err(LibraryLoadError::NotFound {
        tried: candidates.iter().map(|path| path.display().to_string()).collect(),
        message: first_error.unwrap_or_default(),
    })
}

/// Declares the symbols of a library, each of which may be absent, and a function that looks them
/// up.
macro_rules! symbols {
    ($(#[$doc:meta])* $name:ident { $($field:ident = $symbol:literal ($($arg:ty),*);)* }) => {
        $(#[$doc])*
        #[derive(Debug)]
        struct $name {
            $($field: Option<unsafe extern "C" fn($($arg),*) -> std::ffi::c_int>,)*
        }

        impl $name {
            fn load(library: &libloading::Library) -> Self {
                Self {
                    $(
                        // SAFETY: the type is the declaration of this name in the library's header;
                        // the pointer is stored together with the library it points into.
                        $field: unsafe {
                            library
                                .get::<unsafe extern "C" fn($($arg),*) -> std::ffi::c_int>(
                                    concat!($symbol, "\0").as_bytes(),
                                )
                                .ok()
                                .map(|symbol| *symbol)
                        },
                    )*
                }
            }

            fn missing(&self) -> Vec<&'static str> {
                let mut missing = Vec::new();
                $(if self.$field.is_none() {
                    missing.push($symbol);
                })*
                missing
            }
        }
    };
}

pub(super) use symbols;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tried_names_are_listed() {
        let error =
            open_library(None, &["libno-such-1.so", "libno-such-2.so"]).expect_err("no library");
        let message = error.to_string();
        assert!(
            message.starts_with("libno-such-1.so, libno-such-2.so cannot be opened: "),
            "{message}"
        );
        let path = Path::new("/no/such/lib.so");
        let error =
            open_library(Some(path), &["libc.so.6"]).expect_err("a path is not searched for");
        assert!(error.to_string().starts_with("/no/such/lib.so cannot"), "{error}");
    }
}
