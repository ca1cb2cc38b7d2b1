//! Errors in the description of a link.

use std::fmt::Display;

/// Reason why a description of a link cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// There is no such option or preset.
    #[error("{0:?} is neither an option of a link nor a preset; `longsplice-lab links` shows them")]
    Unknown(String),
    /// An option has a value that is not understood.
    #[error("{option} is {text:?}, and should be {wants}")]
    Value {
        /// The option.
        option: &'static str,
        /// Value as given.
        text: String,
        /// Expected value, with an example.
        wants: &'static str,
    },
    /// An option was given twice.
    #[error("{0} is given twice")]
    Twice(&'static str),
    /// A value is out of range.
    #[error("{option} cannot be {value}")]
    OutOfRange {
        /// The option.
        option: String,
        /// Its value.
        value: String,
    },
    /// There are more than two directions.
    #[error("a link has two directions, not {0}")]
    Directions(usize),
}

impl LinkError {
    pub(crate) fn out_of_range(option: &str, value: &impl Display) -> Self {
        LinkError::OutOfRange {
            option: option.to_owned(),
            value: value.to_string(),
        }
    }
}
