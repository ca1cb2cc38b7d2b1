//! Reads lists that may be written as one string.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{
        self,
        value::{SeqAccessDeserializer, StrDeserializer},
    },
};
use toml::Spanned;

/// A string, or a list of strings. (An untagged enum would lose the places of the elements.)
#[derive(Debug, Clone)]
pub(super) enum OneOrMany<T> {
    One(T),
    Many(Vec<Spanned<T>>),
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for OneOrMany<T> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Either<T>(std::marker::PhantomData<T>);
        impl<'de, T: Deserialize<'de>> de::Visitor<'de> for Either<T> {
            type Value = OneOrMany<T>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("text in quotes, or a list of it")
            }
            fn visit_str<E: de::Error>(self, s: &str) -> Result<Self::Value, E> {
                T::deserialize(StrDeserializer::new(s)).map(OneOrMany::One)
            }
            fn visit_seq<A: de::SeqAccess<'de>>(self, seq: A) -> Result<Self::Value, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(seq)).map(OneOrMany::Many)
            }
        }
        d.deserialize_any(Either(std::marker::PhantomData))
    }
}

/// Returns the elements, each with its position.
pub(super) fn flatten<T>(list: Spanned<OneOrMany<T>>) -> Vec<Spanned<T>> {
    let span = list.span();
    match list.into_inner() {
        OneOrMany::One(one) => vec![Spanned::new(span, one)],
        OneOrMany::Many(many) => many,
    }
}

/// Returns the elements of a list; none without a list.
pub(super) fn list<T>(given: Option<Spanned<OneOrMany<T>>>) -> Vec<T> {
    given.map_or_else(Vec::new, |given| {
        flatten(given).into_iter().map(Spanned::into_inner).collect()
    })
}
