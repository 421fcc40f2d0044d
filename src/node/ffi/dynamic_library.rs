//! Opening a driver's library at run time, so that this program starts where
//! there is none.
//!
//! Knows no library in particular. Which symbols a library must have is the
//! business of `cuda` and `nccl`.

#![expect(unsafe_code, reason = "a shared library runs code of its own when it is opened")]

use std::path::{Path, PathBuf};

use libloading::Library;

/// Why a library cannot be used at all.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LibraryLoadError {
    /// No library of these names could be opened.
    #[error("{} cannot be opened: {said}", .tried.join(", "))]
    NotFound {
        /// The names that were tried.
        tried: Vec<String>,
        /// What the loader says of the first of them.
        said: String,
    },
    /// It is no library of this kind: it lacks a symbol that all versions have.
    #[error("{} has no {symbol}, so it is another library", .path.display())]
    WrongLibrary {
        /// The library.
        path: PathBuf,
        /// What it lacks.
        symbol: String,
    },
}

/// A library that was opened, and the name under which it was found.
#[derive(Debug)]
pub(super) struct LoadedLibrary {
    pub(super) library: Library,
    pub(super) path: PathBuf,
}

/// Opens the library at this path, or the first of these names that the loader
/// finds.
pub(super) fn open_library(
    path: Option<&Path>,
    names: &[&str],
) -> Result<LoadedLibrary, LibraryLoadError> {
    let named = names.iter().map(PathBuf::from);
    let candidates: Vec<PathBuf> = path.map_or(named.collect(), |path| vec![path.to_owned()]);
    let mut said = None;
    for path in &candidates {
        // SAFETY: opening a library runs its initialisers. It is the driver's own, or
        // the one that the caller names; there is no way to use a driver without.
        match unsafe { Library::new(path) } {
            Ok(library) => return Ok(LoadedLibrary { library, path: path.clone() }),
            Err(error) => said.get_or_insert(error.to_string()),
        };
    }
    Err(LibraryLoadError::NotFound {
        tried: candidates.iter().map(|path| path.display().to_string()).collect(),
        said: said.unwrap_or_default(),
    })
}

/// Declares the symbols of a library, each of which may be absent, and a way to
/// look them all up.
macro_rules! symbols {
    ($(#[$doc:meta])* $name:ident { $($field:ident = $symbol:literal ($($arg:ty),*);)* }) => {
        $(#[$doc])*
        #[derive(Debug)]
        struct $name {
            $($field: Option<unsafe extern "C" fn($($arg),*) -> std::ffi::c_int>,)*
        }

        impl $name {
            fn of(library: &libloading::Library) -> Self {
                Self {
                    $(
                        // SAFETY: the type is the one that the library's header declares for
                        // this name; the pointer is kept beside the library it points into.
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

            /// The symbols that this library lacks.
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
    fn what_was_tried_is_named() {
        let error =
            open_library(None, &["libno-such-1.so", "libno-such-2.so"]).expect_err("no library");
        let said = error.to_string();
        assert!(said.starts_with("libno-such-1.so, libno-such-2.so cannot be opened: "), "{said}");
        let path = Path::new("/no/such/lib.so");
        let error =
            open_library(Some(path), &["libc.so.6"]).expect_err("a path is not searched for");
        assert!(error.to_string().starts_with("/no/such/lib.so cannot"), "{error}");
    }
}
