//! Sizes of tests.

use std::{env, fmt, str::FromStr};

/// Reads how many times a test does what it does from an environment variable, as `make soak` sets it; without it `few`.
pub fn times<N: FromStr<Err: fmt::Debug>>(variable: &str, few: N) -> N {
    env::var(variable).map_or(few, |word| {
        word.parse()
            .unwrap_or_else(|e| panic!("{variable}={word}: {e:?}"))
    })
}
